package devicetest

import (
	"context"
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/recipes"
	"quill/runtime"
)

// law is what the bundle computes.
type law struct{ state [rows][cols]float32 }

// step is the sum over ranks of one plan's product; it updates the state.
func (l *law) step(ranks int, x []float32, order [rows]int32) (z [cells]float32) {
	old := l.state
	for r := range rows {
		for c := range cols {
			i := r*cols + c
			for k := range cols {
				z[i] += x[r*cols+k] * matrix[k*cols+c]
			}
			z[i] *= float32(ranks * (ranks + 1) / 2)
			l.state[order[r]][c] = old[r][c] + z[i]
		}
	}
	return z
}

// flat is the state as it lies in memory.
func (l *law) flat() []float32 {
	var x []float32
	for _, row := range l.state {
		x = append(x, row[:]...)
	}
	return x
}

// orders are some orders of rows.
var orders = [][rows]int32{{0, 1, 2}, {2, 0, 1}, {1, 0, 2}}

// device is a device under test with its plans bound.
type device struct {
	*fixture
	runtime.Device
	replays []runtime.Replay
	x       [2][]byte // inputs of the plans that compute
	order   [2][]byte
	out     [3][]byte // their outputs, and what was carried
}

// open makes the device, binds all plans and loads the weights.
func (f *fixture) open(t testing.TB, s *Subject) *device {
	d := &device{fixture: f, Device: s.Open(t, f.bundle, f.model, f.b, f.set)}
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	require.NoError(t, d.bind())
	require.NoError(t, d.load(t.Context()))
	return d
}

// bind binds all plans.
func (d *device) bind() error {
	for i := range d.set.Plans {
		p := &d.set.Plans[i]
		r, err := d.Bind(p, d.recipe)
		if err != nil {
			return err
		}
		d.replays = append(d.replays, r)
		var in [2][]byte
		for j := range p.Inputs {
			if in[j], err = r.Stage(p.Inputs[j].Offset, p.Inputs[j].Bytes()); err != nil {
				return err
			}
		}
		if i != carried {
			d.x[i], d.order[i] = in[0], in[1]
		}
		if d.out[i], err = r.Fetch(p.Outputs[0].Offset, p.Outputs[0].Bytes()); err != nil {
			return err
		}
	}
	return nil
}

// load loads the weights.
func (d *device) load(ctx context.Context) error {
	if self, ok := d.Device.(runtime.SelfLoading); ok {
		return self.LoadWeights(ctx, nil)
	}
	for rank := range d.ranks {
		err := runtime.LoadRank(ctx, d.b, d.set, d.model, rank, func(offset int64, data []byte) error {
			return d.Write(rank, recipes.Weights, offset, data)
		}, nil)
		if err != nil {
			return err
		}
	}
	return nil
}

// run feeds x to a plan and compares what it computes.
func (d *device) run(t testing.TB, plan int, l *law, n int, x []float32) {
	order := orders[n%len(orders)]
	d.put(plan, x, order)
	require.NoError(t, d.replays[plan].Run(t.Context()))
	z := l.step(d.ranks, x, order)
	got := floats(d.out[plan])
	for rank := range d.ranks {
		for i := range cells {
			require.Equal(t, z[i]*float32(rank+1), got[rank*cells+i], "element %d of what rank %d gave", i, rank)
		}
	}
}

// put stages the inputs of a plan.
func (d *device) put(plan int, x []float32, order [rows]int32) {
	for i, v := range x {
		binary.LittleEndian.PutUint32(d.x[plan][4*i:], math.Float32bits(v))
	}
	for i, v := range order {
		binary.LittleEndian.PutUint32(d.order[plan][4*i:], uint32(v))
	}
}

func floats(b []byte) []float32 {
	x := make([]float32, len(b)/4)
	for i := range x {
		x[i] = math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return x
}

// inputs are different small integers for each n.
func inputs(n int) []float32 {
	x := make([]float32, cells)
	for i := range x {
		x[i] = float32((i*7+n*5)%9 - 4)
	}
	return x
}
