package native

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"quill/recipes"
	"quill/recipes/dump"
	"quill/recipes/store"
	"quill/recipes/target"
)

// job is a recipe to compile.
type job struct {
	dump.Entry
	tries int
	err   error  // that of the last try
	dir   string // of the process that tried it last
}

// jobsOf are the recipes of a bundle, in the order of their first launch.
func jobsOf(b *recipes.Bundle) []*job {
	var jobs []*job
	at := map[recipes.Hash]*job{}
	for i := range b.Sets {
		s := &b.Sets[i]
		for j := range s.Plans {
			p := &s.Plans[j]
			for k := range p.Steps {
				l := p.Steps[k].Launch
				if l == nil {
					continue
				}
				x := at[l.Recipe]
				if x == nil {
					x = &job{Entry: dump.Entry{Hash: l.Recipe, Recipe: b.Recipes[l.Recipe]}}
					at[l.Recipe], jobs = x, append(jobs, x)
				}
				x.Uses = append(x.Uses, dump.Use{Set: s, Plan: p, Step: k})
			}
		}
	}
	for _, h := range slices.SortedFunc(maps.Keys(b.Recipes), func(x, y recipes.Hash) int { return bytes.Compare(x[:], y[:]) }) {
		if at[h] == nil { // no plan launches it, yet a bundle has all or none
			jobs = append(jobs, &job{Entry: dump.Entry{Hash: h, Recipe: b.Recipes[h]}})
		}
	}
	return jobs
}

// encodes checks that the profile has the layouts of all parameters, and says of those
// that it lacks which header has them.
func (c *Compiler) encodes(jobs []*job) error {
	lacking := map[string]int{} // recipes by what is lacking
	var errs []error
	for _, x := range jobs {
		seen := map[string]bool{}
		for i := range x.Recipe.Nodes {
			_, err := c.opt.Profile.EncodeNode(x.Recipe, &x.Recipe.Nodes[i])
			missing, ok := errors.AsType[*target.MissingError](err)
			if !ok || seen[missing.Struct] {
				continue // what else is wrong is an error of its graph
			}
			seen[missing.Struct] = true
			if lacking[missing.Struct] == 0 {
				errs = append(errs, missing)
			}
			lacking[missing.Struct]++
		}
	}
	for i, err := range errs {
		missing := err.(*target.MissingError)
		errs[i] = fmt.Errorf("%d of %d recipes have parameters %s: %w, which --native-profile takes", lacking[missing.Struct], len(jobs), missing.Struct, err)
	}
	return errors.Join(errs...)
}

// run is one compile of a bundle's recipes.
type run struct {
	*Compiler
	jobs []*job

	started atomic.Int64 // processes

	mu   sync.Mutex
	made map[recipes.Hash]recipes.NativeRecipe
	step Step
}

// all compiles all jobs, several at once. Those that killed their process are tried again,
// each in a new one with no other beside it: it may have been others that took the memory,
// or spoiled the process before.
func (r *run) all(ctx context.Context) error {
	if err := r.pass(ctx, r.jobs, r.opt.Jobs, false); err != nil {
		return err
	}
	var killers []*job
	for _, x := range r.jobs {
		if _, ok := errors.AsType[*death](x.err); ok {
			killers = append(killers, x)
		}
	}
	if err := r.pass(ctx, killers, 1, true); err != nil {
		return err
	}
	failed := slices.DeleteFunc(slices.Clone(r.jobs), func(x *job) bool { return x.err == nil })
	if len(failed) == 0 {
		return nil
	}
	return r.failed(failed)
}

// pass tries jobs, each in a fresh process if that is asked for. What is wrong with a job
// is kept with it; an error is that of ctx, or that no process can be started.
func (r *run) pass(ctx context.Context, jobs []*job, processes int, fresh bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var group sync.WaitGroup
	for range min(processes, len(jobs)) {
		group.Go(func() {
			w := &worker{run: r}
			defer w.close()
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= len(jobs) {
					return
				}
				if err := w.one(ctx, jobs[i]); err != nil {
					cancel(err)
				}
				if fresh {
					w.close()
				}
			}
		})
	}
	group.Wait()
	return context.Cause(ctx)
}

// worker compiles one job after the other, in a process that is started when the store
// lacks something, and again after its death.
type worker struct {
	*run
	process *process
}

func (w *worker) close() {
	if w.process != nil {
		w.process.close()
		w.process = nil
	}
}

// one does a job. The error is one for which the job is not to blame.
func (w *worker) one(ctx context.Context, x *job) error {
	start, kept := time.Now(), true
	w.begin()
	var fatal error
	result, err := w.opt.Store.Do(ctx, w.with.key(x.Hash), func(ctx context.Context) (*store.Result, error) {
		kept = false
		p, err := w.ready(ctx)
		if err != nil {
			fatal = err
			return nil, err
		}
		x.tries, x.dir = x.tries+1, p.dir
		return compileResult(ctx, p, w.opt.Deadline, x.Recipe)
	})
	var made recipes.NativeRecipe
	if err == nil {
		made, err = takeResult(result)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if fatal != nil {
		return fatal
	}
	x.err = err
	w.end(x, made, time.Since(start), kept)
	return nil
}

// ready is a process that waits for a recipe.
func (w *worker) ready(ctx context.Context) (*process, error) {
	if w.process != nil && !w.process.dead {
		return w.process, nil
	}
	w.close()
	p, err := w.start(ctx, int(w.started.Add(1)))
	if err == nil {
		w.process = p
	}
	return p, err
}

func (r *run) begin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.step.Running++
}

// end keeps what was made of a job, and tells of it unless it is tried again.
func (r *run) end(x *job, made recipes.NativeRecipe, took time.Duration, kept bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	s := &r.step
	s.Running--
	if _, died := errors.AsType[*death](x.err); died && x.tries == 1 {
		return
	}
	if x.err == nil {
		r.made[x.Hash] = made
	}
	s.Done, s.What, s.Took = s.Done+1, x.ID(), took
	if kept {
		s.Kept++
	}
	if took > s.SlowestTook {
		s.Slowest, s.SlowestTook = s.What, took
	}
	if r.opt.Progress != nil {
		r.opt.Progress(*s)
	}
}

// sizes is the data of a result; its one blob is the native recipe.
type sizes struct {
	WorkspaceBytes int64 `json:"workspace_bytes"`
	ProgramBytes   int64 `json:"program_bytes"`
}

// compileResult compiles a recipe into what the store keeps.
func compileResult(ctx context.Context, p *process, deadline time.Duration, r *recipes.Recipe) (*store.Result, error) {
	content, a, err := p.compile(ctx, deadline, r)
	if err != nil {
		return nil, err
	}
	result := &store.Result{Blobs: map[recipes.Hash][]byte{recipes.Sum(content): content}}
	result.Data, err = json.Marshal(sizes{a.WorkspaceBytes, a.ProgramBytes})
	if err == nil {
		_, err = takeResult(result) // what cannot be in a bundle is not kept
	}
	return result, err
}

// takeResult packs what the store had.
func takeResult(r *store.Result) (made recipes.NativeRecipe, err error) {
	var s sizes
	if err := json.Unmarshal(r.Data, &s); err != nil {
		return made, fmt.Errorf("the sizes of a native recipe: %w", err)
	}
	for _, content := range r.Blobs {
		made, err = recipes.PackNative(content, s.WorkspaceBytes, s.ProgramBytes)
	}
	return made, err
}
