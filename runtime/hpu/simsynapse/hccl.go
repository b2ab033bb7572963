package simsynapse

import (
	"sync"

	"quill/recipes/dtype"
)

// IDSize is the size of the part of a hcclUniqueId that the library fills.
const IDSize = 1024

// comm is this process's end of a communicator.
type comm struct {
	rank, ranks int
	link        *link
	pending     sync.Mutex // held while a collective is exchanged
	aborted     chan struct{}
	once        sync.Once
}

func (c *comm) close() { c.once.Do(func() { close(c.aborted); c.link.close() }) }

// hcclTypes are element types of collectives by their numbers. Sums take f32 and bf16, and
// i32 from 1.20 on; what only moves takes them too, and bytes do not go otherwise.
var hcclTypes = map[int32]dtype.Type{2: dtype.I32, 7: dtype.F32, 9: dtype.BF16}

// callHCCL is call for functions that return a hcclResult.
func callHCCL[R any](l *Library, name string, a args, body func() (R, Result)) (R, Result) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var r R
	res := l.enterHCCL(name)
	if res == HCCLSuccess {
		r, res = body()
	}
	l.account()
	l.tracer.call(name, a, r, int32(res))
	return r, res
}

func (l *Library) doHCCL(name string, a args, body func() Result) Result {
	_, res := callHCCL(l, name, a, func() (none, Result) { return none{}, body() })
	return res
}

// enterHCCL is enter; the number of a planned fault is the result's.
func (l *Library) enterHCCL(name string) Result {
	st := l.enter(name)
	if l.fault != nil && l.fault.status != Success && st == l.fault.status {
		return Result(st)
	}
	return st.asResult()
}

func (l *Library) refusedHCCL(res Result, format string, a ...any) Result {
	l.logs.runtime("%v: "+format, append([]any{res}, a...)...)
	return res
}

// HCCLVersion is what hcclGetVersion tells.
const HCCLVersion = 2604

// UniqueID is hcclGetUniqueId: it starts what the ranks of a communicator meet at, in this
// process.
func (l *Library) UniqueID() ([]byte, Result) {
	return callHCCL(l, "hcclGetUniqueId", nil, func() ([]byte, Result) {
		id, ln, err := startCoordinator(l.config.CommID)
		if err != nil {
			return nil, l.refusedHCCL(HCCLSocketError, "coordinator: %v", err)
		}
		l.meetings = append(l.meetings, ln)
		return id, HCCLSuccess
	})
}

// CommInitRank is hcclCommInitRank: it returns once all ranks are there. With HCCL_COMM_ID
// the id is not looked at.
func (l *Library) CommInitRank(ranks int32, id []byte, rank int32) (h Handle, res Result) {
	name, a := "hcclCommInitRank", args{"ranks": ranks, "id": id, "rank": rank}
	l.mu.Lock()
	defer l.mu.Unlock()
	defer func() {
		l.account()
		l.tracer.call(name, a, h, int32(res))
	}()
	if res := l.enterHCCL(name); res != HCCLSuccess {
		return 0, res
	}
	switch {
	case l.device == nil:
		return 0, l.refusedHCCL(HCCLInvalidUsage, "a communicator needs a device that is acquired")
	case ranks < 1 || ranks > 1024 || rank < 0 || rank >= ranks:
		return 0, l.refusedHCCL(HCCLInvalidArgument, "rank %d of %d", rank, ranks)
	}
	l.mu.Unlock() // the other ranks may be long in coming
	link, err := join(id, l.config.CommID, int(rank), int(ranks))
	l.mu.Lock()
	if err != nil {
		return 0, l.refusedHCCL(HCCLSocketError, "rank %d of %d: %v", rank, ranks, err)
	}
	h = l.handle()
	l.comms[h] = &comm{rank: int(rank), ranks: int(ranks), link: link, aborted: make(chan struct{})}
	return h, HCCLSuccess
}

// withComm makes a call about a communicator.
func withComm[R any](l *Library, name string, h Handle, a args, body func(*comm) (R, Result)) (R, Result) {
	a["comm"] = h
	return callHCCL(l, name, a, func() (out R, _ Result) {
		c, ok := l.comms[h]
		if !ok {
			return out, l.refusedHCCL(HCCLInvalidArgument, "communicator %#x is not there", uint64(h))
		}
		return body(c)
	})
}

// CommCount is hcclCommCount.
func (l *Library) CommCount(h Handle) (int32, Result) {
	return withComm(l, "hcclCommCount", h, args{}, func(c *comm) (int32, Result) { return int32(c.ranks), HCCLSuccess })
}

// CommRank is hcclCommUserRank.
func (l *Library) CommRank(h Handle) (int32, Result) {
	return withComm(l, "hcclCommUserRank", h, args{}, func(c *comm) (int32, Result) { return int32(c.rank), HCCLSuccess })
}

// CommAsyncError is hcclCommGetAsyncError: HCCLSocketError once a peer is gone.
func (l *Library) CommAsyncError(h Handle) (Result, Result) {
	return withComm(l, "hcclCommGetAsyncError", h, args{}, func(c *comm) (Result, Result) {
		if c.link.broken() {
			return HCCLSocketError, HCCLSuccess
		}
		return HCCLSuccess, HCCLSuccess
	})
}

// CommFinalize is hcclCommFinalize.
func (l *Library) CommFinalize(h Handle) Result {
	_, res := withComm(l, "hcclCommFinalize", h, args{}, func(*comm) (none, Result) { return none{}, HCCLSuccess })
	return res
}

// CommDestroy is hcclCommDestroy.
func (l *Library) CommDestroy(h Handle) Result { return l.endComm("hcclCommDestroy", h) }

// CommAbort is hcclCommAbort: collectives that wait for a peer end, and with them their
// streams.
func (l *Library) CommAbort(h Handle) Result { return l.endComm("hcclCommAbort", h) }

func (l *Library) endComm(name string, h Handle) Result {
	_, res := withComm(l, name, h, args{}, func(c *comm) (none, Result) {
		c.close()
		delete(l.comms, h)
		return none{}, HCCLSuccess
	})
	return res
}

// AllReduce is hcclAllReduce, of which sums (0) are simulated.
func (l *Library) AllReduce(send, recv, count uint64, dataType, operation int32, comm, stream Handle) Result {
	a := args{"send": send, "recv": recv, "count": count, "data_type": dataType, "op": operation}
	if operation != 0 {
		return l.doHCCL("hcclAllReduce", a, func() Result {
			return l.refusedHCCL(HCCLUnsupported, "reduction %d: only sums (0) are simulated", operation)
		})
	}
	return l.collective("hcclAllReduce", a, request{Kind: kindReduce, Type: dataType, Count: count}, send, recv, comm, stream)
}

// AllGather is hcclAllGather: count is what each rank sends.
func (l *Library) AllGather(send, recv, count uint64, dataType int32, comm, stream Handle) Result {
	a := args{"send": send, "recv": recv, "count": count, "data_type": dataType}
	return l.collective("hcclAllGather", a, request{Kind: kindGather, Type: dataType, Count: count}, send, recv, comm, stream)
}

// Broadcast is hcclBroadcast, and hcclBcast.
func (l *Library) Broadcast(send, recv, count uint64, dataType, root int32, comm, stream Handle) Result {
	a := args{"send": send, "recv": recv, "count": count, "data_type": dataType, "root": root}
	return l.collective("hcclBroadcast", a, request{Kind: kindBroadcast, Type: dataType, Count: count, Root: root}, send, recv, comm, stream)
}

// Barrier is hcclBarrier.
func (l *Library) Barrier(comm, stream Handle) Result {
	return l.collective("hcclBarrier", args{}, request{Kind: kindBarrier, Type: 7}, 0, 0, comm, stream)
}

// collective enqueues one.
func (l *Library) collective(name string, a args, q request, send, recv uint64, commHandle, streamHandle Handle) Result {
	a["stream"] = streamHandle
	_, res := withComm(l, name, commHandle, a, func(c *comm) (none, Result) {
		s, ok := l.streams[streamHandle]
		if !ok {
			return none{}, l.refusedHCCL(HCCLInvalidArgument, "%s: stream %#x is not there", name, uint64(streamHandle))
		}
		t, ok := hcclTypes[q.Type]
		if !ok || q.Count > 1<<40 || q.Root < 0 || int(q.Root) >= c.ranks {
			return none{}, l.refusedHCCL(HCCLInvalidArgument, "%s: data type %d, count %d, root %d", name, q.Type, q.Count, q.Root)
		}
		in := q.Count * uint64(t.Size())
		out := in
		if q.Kind == kindGather {
			out *= uint64(c.ranks)
		}
		o := &op{what: name, joint: true}
		var x, y []byte
		if in > 0 {
			var st1, st2 Status
			if q.Kind != kindBroadcast || int(q.Root) == c.rank { // only the root sends
				x, st1 = l.deviceSide(o, send, in)
			}
			y, st2 = l.deviceSide(o, recv, out)
			if st1 != Success || st2 != Success || send%uint64(t.Size()) != 0 || recv%uint64(t.Size()) != 0 {
				return none{}, l.refusedHCCL(HCCLInvalidArgument, "%s: addresses %#x and %#x", name, send, recv)
			}
		}
		stuck := l.fault != nil && l.fault.action == "stuck"
		o.run = func() Status { return l.exchange(c, q, x, y, stuck) }
		s.enqueue(o)
		return none{}, HCCLSuccess
	})
	return res
}

// exchange takes part in a collective. Without all peers it does not end before the
// communicator does.
func (l *Library) exchange(c *comm, q request, x, y []byte, stuck bool) Status {
	c.pending.Lock()
	defer c.pending.Unlock()
	var got []byte
	var err error
	if !stuck {
		got, err = c.link.exchange(q, x)
	}
	if stuck || err != nil {
		if err != nil {
			l.logs.runtime("collective of rank %d: %v", c.rank, err)
		}
		<-c.aborted
		return FailHCCL
	}
	copy(y, got)
	return Success
}
