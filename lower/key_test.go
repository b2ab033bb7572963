package lower

import (
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"quill/passes"
	"quill/recipes"
	"quill/recipes/store"
	"quill/recipes/target"
)

// realIngredients are those of a small deployment, with every parameter of passes given.
func realIngredients(t *testing.T) *ingredients {
	t.Helper()
	in := keyed(t, small+"moe_experts_per_node: 4\nprecision: f32\n").ingredients()
	v := reflect.ValueOf(in.Params)
	for i := range v.NumField() {
		require.False(t, v.Field(i).IsZero(), "give params.%s a value", v.Type().Field(i).Name)
	}
	return in
}

// flipper changes values one at a time and looks at the key.
type flipper struct {
	t     *testing.T
	hash  func() (recipes.Hash, error)
	seen  map[recipes.Hash]string
	paths map[string]bool // without indices
}

// differs checks that the key is one that was not there before.
func (f *flipper) differs(path string) {
	f.t.Helper()
	h, err := f.hash()
	require.NoError(f.t, err, path)
	if before, ok := f.seen[h]; ok {
		f.t.Errorf("another %s leaves the key as it is with %s", path, before)
	}
	f.seen[h] = path
}

// flip changes each part of a value, of long lists the first and the last of each kind.
func (f *flipper) flip(path string, v reflect.Value) {
	f.t.Helper()
	old := reflect.New(v.Type()).Elem()
	old.Set(v)
	change := func(to any) {
		v.Set(reflect.ValueOf(to).Convert(v.Type()))
		f.differs(path)
		v.Set(old)
	}
	f.paths[path] = true
	switch p := v.Addr().Interface().(type) {
	case *passes.Pipeline:
		for i := range *p {
			without := slices.Delete(slices.Clone(*p), i, i+1)
			*p = without
			f.differs(fmt.Sprint(path, " without step ", i))
			v.Set(old)
		}
		for _, text := range []string{"cse{scope=function}", "hoist-step-invariant{most=1}"} {
			step, err := passes.Parse(text)
			require.NoError(f.t, err)
			i := slices.IndexFunc(*p, func(s passes.Step) bool { return s.Pass.Name == step[0].Pass.Name })
			*p = slices.Clone(*p)
			(*p)[i] = step[0]
			f.differs(path + " with " + text)
			v.Set(old)
		}
		return
	case *[]byte: // JSON
		f.json(path, p)
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			field := v.Type().Field(i)
			require.True(f.t, field.IsExported(), "%s.%s: say how the test is to change it", path, field.Name)
			f.flip(path+"."+field.Name, v.Field(i))
		}
	case reflect.Pointer:
		if !v.IsNil() {
			f.flip(path, v.Elem())
			return
		}
		v.Set(reflect.New(v.Type().Elem()))
		f.differs(path + " that is there")
		v.Set(old)
	case reflect.Slice:
		n := v.Len()
		v.Set(reflect.Append(slicesClone(v), reflect.New(v.Type().Elem()).Elem()))
		f.differs(path + " with one more")
		v.Set(old)
		if n == 0 {
			return
		}
		v.Set(slicesClone(v).Slice(0, n-1))
		f.differs(path + " with one less")
		v.Set(old)
		clone := slicesClone(v)
		v.Set(clone)
		for _, i := range slices.Compact([]int{0, n - 1}) {
			f.flip(fmt.Sprintf("%s[%d]", path, i), clone.Index(i))
		}
		v.Set(old)
	case reflect.Map: // of texts to numbers
		with := reflect.MakeMap(v.Type())
		for _, k := range v.MapKeys() {
			with.SetMapIndex(k, v.MapIndex(k))
		}
		with.SetMapIndex(reflect.ValueOf("another").Convert(v.Type().Key()), reflect.Zero(v.Type().Elem()))
		change(with.Interface())
	case reflect.String:
		change(v.String() + "x")
	case reflect.Bool:
		change(!v.Bool())
	case reflect.Int, reflect.Int64:
		change(v.Int() + 1)
	case reflect.Float64:
		change(v.Float() + 0.5)
	default:
		f.t.Errorf("%s is of kind %v: say how the test is to change it", path, v.Kind())
	}
}

func slicesClone(v reflect.Value) reflect.Value {
	c := reflect.MakeSlice(v.Type(), v.Len(), v.Len())
	reflect.Copy(c, v)
	return c
}

// json changes each value of a JSON text.
func (f *flipper) json(path string, text *[]byte) {
	old := *text
	var tree map[string]any
	require.NoError(f.t, json.Unmarshal(old, &tree))
	var walk func(path string, x any, set func(any))
	try := func(path string, x any, set func(any)) {
		set(x)
		data, err := json.Marshal(tree)
		require.NoError(f.t, err)
		*text, err = recipes.Architecture(data)
		require.NoError(f.t, err)
		f.differs(path)
		*text = old
	}
	walk = func(path string, x any, set func(any)) {
		switch x := x.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(x)) {
				walk(path+"."+k, x[k], func(v any) { x[k] = v })
			}
		case []any:
			for i := range x {
				walk(fmt.Sprintf("%s[%d]", path, i), x[i], func(v any) { x[i] = v })
			}
		case string:
			try(path, x+"x", set)
		case float64:
			try(path, x+1, set)
		case bool:
			try(path, !x, set)
		case nil:
			try(path, 1, set)
		}
		set(x)
	}
	walk(path, map[string]any(tree), func(any) {})
}

// Every part of everything that a result depends on is in its key.
func TestEveryIngredientIsInTheKey(t *testing.T) {
	t.Parallel()
	in := realIngredients(t)
	f := &flipper{t: t, seen: map[recipes.Hash]string{}, paths: map[string]bool{}, hash: func() (recipes.Hash, error) {
		key, err := in.key()
		return key.Hash(), err
	}}
	f.differs("nothing")
	f.flip("in", reflect.ValueOf(in).Elem())
	for _, path := range []string{"in.Build", "in.Encoding", "in.Target.Limits[0].Value", "in.Target.Nodes[0].GUID", "in.Deployment.KVBlocks", "in.Params.MaskBudget"} {
		require.True(t, f.paths[path], path)
	}
	t.Logf("%d changes", len(f.seen)-1)

	// Whatever the fields of the key are, another text of any is another key.
	key, err := in.key()
	require.NoError(t, err)
	key = append(key, store.Field{Name: "what", Text: "bucket decode/b=1,n=1"})
	seen := map[recipes.Hash]bool{key.Hash(): true}
	for i := range key {
		other := slices.Clone(key)
		other[i].Text += " "
		require.False(t, seen[other.Hash()], key[i].Name)
		seen[other.Hash()] = true
	}
}

// keyed is the compiler of the first set of a deployment, as far as its key needs it.
func keyed(t *testing.T, text string) *setCompiler {
	t.Helper()
	d, err := deployment(t, text)
	require.NoError(t, err)
	src, cfg, err := d.config()
	require.NoError(t, err)
	all, err := d.covering(cfg)
	require.NoError(t, err)
	arch, err := recipes.Architecture(src)
	require.NoError(t, err)
	precision := d.Precisions()[0]
	tgt, err := target.Load(target.Default)
	require.NoError(t, err)
	return &setCompiler{
		compiler:  &compiler{cfg: cfg, dep: d, buckets: all, bundle: &recipes.Bundle{Architecture: arch}, passes: defaultManager(d.params()), build: "b"},
		precision: precision, options: d.options(precision), target: tgt,
	}
}

// A key of a deployment is in the key of results, or there is a reason why it need not be.
func TestEveryDeploymentKeyIsInTheKey(t *testing.T) {
	t.Parallel()
	values := map[string]string{ // another value than that of base
		"model": "../nano-big", "tensor_parallel": "1", "max_model_len": "128", "max_num_seqs": "2", "block_size": "8",
		"kv_blocks": "70", "max_batched_tokens": "32", "attention": "plain", "far": "exact", "mask_budget": "1KiB", "sub_block_rows": "5",
		"moe": "gather", "moe_experts_per_node": "2", "precision": "bf16", "embedding": "sharded",
	}
	reasons := map[string]string{
		"target":        "there is one",
		"device_memory": "refuses a bundle, and changes none",
		"buckets":       "which families there are is in the key, each bucket has one of its own",
	}
	base := map[string]string{
		"model": "../nano-small", "tensor_parallel": "2", "max_model_len": "256", "max_num_seqs": "4", "block_size": "16",
		"max_batched_tokens": "64", "precision": "f32",
	}
	hash := func(keys map[string]string) recipes.Hash {
		text := ""
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			text += k + ": " + keys[k] + "\n"
		}
		key, err := keyed(t, text).ingredients().key()
		require.NoError(t, err)
		return key.Hash()
	}
	seen := map[recipes.Hash]string{hash(base): "base"}
	typ := reflect.TypeFor[Deployment]()
	for i := range typ.NumField() {
		name, _, _ := strings.Cut(typ.Field(i).Tag.Get("yaml"), ",")
		if name == "" || reasons[name] != "" {
			continue
		}
		require.NotEmpty(t, values[name], "give key %s another value here, or a reason", name)
		with := maps.Clone(base)
		with[name] = values[name]
		h := hash(with)
		require.Empty(t, seen[h], "%s", name)
		seen[h] = name
	}
	require.Len(t, seen, len(values)+1)
}
