package lower

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"quill/ir/inkling"
	"quill/passes"
	"quill/recipes"
)

// BenchmarkLowering reports what compiling all buckets of Inkling-Small on eight ranks
// takes: time a bucket; time a node, of the distinct recipes of each plan; and how time
// a bucket grows from every fourth bucket to all, where 1 is no growth. Capture and the
// passes of families, which are once for all buckets, are timed by themselves.
func BenchmarkLowering(b *testing.B) {
	cfg := published(b, "inkling-small")
	d := dep(262144, 16, 128, 8192)
	d.TensorParallel, d.KVBlocks = 8, 2560
	all, err := d.covering(cfg)
	require.NoError(b, err)
	var fourth []recipes.Bucket
	for i := 0; i < len(all); i += 4 {
		fourth = append(fourth, all[i])
	}
	var families, some, whole time.Duration
	var nodes int
	lowering{b, cfg, d}.run(fourth) // the first is slower
	for b.Loop() {
		c := lowering{b, cfg, d}.run(fourth)
		some += c.rest
		c = lowering{b, cfg, d}.run(all)
		families, whole, nodes = families+c.families, whole+c.rest, nodes+c.nodes
	}
	b.ReportMetric(families.Seconds()*1e3/float64(b.N), "ms/families")
	b.ReportMetric(whole.Seconds()*1e3/float64(b.N*len(all)), "ms/bucket")
	b.ReportMetric(float64(whole.Nanoseconds())/float64(nodes), "ns/node")
	b.ReportMetric(whole.Seconds()/some.Seconds()*float64(len(fourth))/float64(len(all)), "growth")
	b.ReportMetric(0, "ns/op")
}

type lowered struct {
	families, rest time.Duration
	nodes          int
}

type lowering struct {
	b   *testing.B
	cfg *inkling.Config
	d   *Deployment
}

func (l lowering) run(buckets []recipes.Bucket) (out lowered) {
	c := compiler{
		cfg: l.cfg, dep: l.d, buckets: buckets, bundle: &recipes.Bundle{Recipes: map[recipes.Hash]*recipes.Recipe{}},
		passes: passes.NewManager(passes.Config{Pipeline: passes.Default(), Params: l.d.params()}),
	}
	start := time.Now()
	_, err := c.families(l.b.Context(), l.d.options(BF16), BF16)
	require.NoError(l.b, err)
	out.families = time.Since(start)
	start = time.Now()
	require.NoError(l.b, c.set(l.b.Context(), BF16))
	out.rest = time.Since(start) - out.families // which set makes again
	for i := range c.bundle.Sets[0].Plans {
		seen := map[recipes.Hash]bool{}
		for _, s := range c.bundle.Sets[0].Plans[i].Steps {
			if s.Launch != nil && !seen[s.Launch.Recipe] {
				seen[s.Launch.Recipe] = true
				out.nodes += len(c.bundle.Recipes[s.Launch.Recipe].Nodes)
			}
		}
	}
	return out
}
