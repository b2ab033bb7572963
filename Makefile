# quill: build, test and demonstration. Only Go, make and git are needed.

GO          ?= go
OUT         := out
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOFUMPT     := mvdan.cc/gofumpt@v0.12.0
FUZZTIME    ?= 30s

export CGO_ENABLED := 0

.PHONY: build test test-abi libsim demo soak fuzz bugs lint generate bench clean

build:
	@mkdir -p bin
	$(GO) build -trimpath -o bin/quill ./cmd/quill

test: build
	$(GO) vet ./...
	$(GO) test -timeout 45m ./...

# What is proved over the C interface of Synapse: against a library in C that writes down
# how it is called, and against one that simulates cards. Needs a C compiler, as soak does
# and nothing else. Some five minutes on two cores.
LIBSIM := $(abspath $(OUT))/libsimsynapse.so
ABI    := QUILL_ABI=1 QUILL_ABI_LIB=$(LIBSIM) GC_KERNEL_PATH=$(LIBSIM) SIMSYNAPSE_PROFILE=$(CURDIR)/recipes/dump/testdata/standin.h
test-abi: libsim
	$(ABI) $(GO) test -count=1 ./recipes/dl/... ./lower/synapse/compiler ./runtime/hpu/...
	$(ABI) $(GO) test -count=1 -run ABI ./cmd/quill
	$(ABI) $(GO) test -count=1 -run Cards ./cmd/quill/e2e
	$(GO) vet -tags nohpu ./...
	GOOS=darwin GOARCH=arm64 $(GO) vet ./...

# The library that simulates cards.
libsim:
	@command -v cc >/dev/null || { echo "the simulated library needs a C compiler: there is no cc"; exit 1; }
	@mkdir -p $(OUT)
	CGO_ENABLED=1 $(GO) build -buildmode=c-shared -o $(LIBSIM) ./runtime/hpu/simsynapse/lib

# Compiles a small trained Inkling for four ranks and lets it answer.
demo: build
	@./testdata/demo/run.sh

# Every combination of the golden matrix, some ten minutes on two cores, two minutes of
# processes that use a store and are killed, and a thousand seeds of faults of cards,
# some six minutes.
soak: libsim
	QUILL_SOAK=1 $(GO) test -count=1 -timeout 3h -v -run Soak ./cmd/quill/e2e
	QUILL_SOAK=1 $(GO) test -count=1 -timeout 1h -v -run ReadBundle ./recipes
	QUILL_SOAK=1 $(GO) test -count=1 -timeout 1h -v -run AnyDeploymentPlans ./lower
	QUILL_SOAK=1 $(GO) test -count=1 -timeout 1h -v -run 'Killed|Processes|Load' ./recipes/store
	QUILL_SOAK=1 $(GO) test -count=1 -timeout 1h -v -run 'Killed|Processes' ./cmd/quill
	QUILL_SOAK=1 $(ABI) $(GO) test -count=1 -timeout 1h -v -run '^TestFaults$$' ./runtime/hpu

# Each fuzz target for FUZZTIME.
fuzz:
	@set -e; for p in $$($(GO) list ./...); do \
	  for f in $$($(GO) test -list '^Fuzz' $$p | grep '^Fuzz' || true); do \
	    echo "== $$p $$f"; $(GO) test -run '^$$' -fuzz "^$$f\$$" -fuzztime $(FUZZTIME) -fuzzminimizetime 10x $$p; \
	  done; \
	done

# Plants faults one at a time in a copy; the test that each names must find it. Some
# four minutes on two cores.
bugs:
	QUILL_BUGS=1 $(GO) test -count=1 -timeout 2h -v -run PlantedBugs ./cmd

lint:
	$(GO) vet ./...
	$(GO) run $(STATICCHECK) ./...
	@bad=$$($(GO) run $(GOFUMPT) -l .); if [ -n "$$bad" ]; then echo "gofumpt would change:"; echo "$$bad"; exit 1; fi

generate:
	$(GO) generate ./...

# Shares of what the machine can do, which is measured between the runs of what
# is compared with it. A synthetic checkpoint of 7.3 GB is made once, below out. What falls short fails, after all ran.
bench: build
	@failed=0; run() { echo "$$ $$*"; "$$@" || failed=1; }; \
	run $(GO) test -run '^$$' -bench . -benchtime 10x ./ir/inkling; \
	run $(GO) test -run '^$$' -bench Lowering -benchtime 3x ./lower; \
	run $(GO) test -run '^$$' -bench Compile -benchtime 1x ./cmd/quill; \
	run $(GO) test -run '^$$' -bench . -benchtime 2s ./cmd/quill/e2e; \
	QUILL_ROOFS=1 run $(GO) test -count=1 -run Ratios -v ./runtime/host/kern; \
	run $(GO) test -run '^$$' -bench 'Product|MoE|References' -benchtime 1x ./runtime/host; \
	run ./testdata/demo/bench.sh $(OUT)/bench; \
	exit $$failed

clean:
	rm -rf bin $(OUT)
