package target

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// Built-in profiles are consistent and written the way that import writes them.
func TestBuiltInProfiles(t *testing.T) {
	require.Contains(t, Names(), Default)
	for _, name := range Names() {
		p, err := Load(name)
		require.NoError(t, err)
		require.Equal(t, name, p.Name)
		want, err := p.Format()
		require.NoError(t, err)
		file := filepath.Join("profiles", name+".json")
		if os.Getenv("QUILL_BLESS") != "" {
			require.NoError(t, os.WriteFile(file, want, 0o666))
		}
		got, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, string(want), string(got), "QUILL_BLESS=1 rewrites it")
	}
}

// Every kind of contradiction in a profile is found, and named.
func TestBadProfiles(t *testing.T) {
	field := func(s string) string {
		return `{"name": "S", "size": 8, "align": 4, "header": "h", "source": "x", "fields": [` + s + `]}`
	}
	for _, c := range []struct{ structs, want string }{
		{field(`{"offset": 0, "name": "a", "type": "int32_t"}`), "size is 8, fields that end at 4 and alignment 4 make 4"},
		{field(`{"offset": 0, "name": "a", "type": "int16_t", "count": 4}`), "alignment is 4, its fields need 2"},
		{field(`{"offset": 2, "name": "a", "type": "int32_t"}`), "field a: int32_t at byte 2 is not aligned to 4"},
		{field(`{"offset": 8, "name": "a", "type": "int32_t"}`), "field a: it ends at byte 12 of 8"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t"}, {"offset": 0, "name": "b", "type": "int32_t"}`), "field b is at byte 0, what is before it ends at 4"},
		{field(`{"offset": 4, "name": "a", "type": "int32_t"}, {"offset": 0, "name": "b", "type": "int32_t"}`), "field b is at byte 0, what is before it ends at 8"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "union": "u"}, {"offset": 0, "name": "b", "type": "float", "union": "v"}`), "field b is at byte 0, what is before it ends at 4"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t"}, {"offset": 4, "name": "a", "type": "int32_t"}`), "recipes would have two fields a"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t"}, {"offset": 4, "name": "b", "recipe": "a", "type": "float"}`), "recipes would have two fields a"},
		{field(`{"offset": 0, "name": "a", "type": "long"}`), `field a has unknown type "long"`},
		{field(`{"offset": 0, "name": "", "type": "int32_t"}`), "a field at byte 0 has no name"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "count": -1}`), "-1 elements"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "default": [1, 2]}`), "2 defaults for 1 elements"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "default": [0.5]}`), "default 0.5"},
		{field(`{"offset": 0, "name": "a", "type": "uint8_t", "default": [256]}`), "default 256, want 0 to 255"},
		{field(`{"offset": 0, "name": "a", "type": "float", "as": "i32"}`), "only numbers are carried otherwise"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "flags": "F"}`), "flags F: want an enumeration"},
		{field(`{"offset": 0, "name": "a", "type": "pointer"}`), "a pointer is reserved"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "used": "b"}`), "used b: want an array of integers"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "count": 2, "used": "b"}`), "used b is no uint32_t of the structure"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "count": 2, "rest": "index"}`), `rest "index": want index, beside used`},
		{field(`{"offset": 0, "name": "a", "type": "float", "count": 2}`), "recipes carry no arrays of floats"},
		{field(`{"offset": 0, "name": "a", "type": "int32_t", "symbols": {"x": "X"}}`), "symbol x: the field has no names"},
		{`{"name": "S", "size": 0, "align": 1, "header": "h", "source": "x"}`, "size is 0"},
		{`{"name": "S", "size": 1, "align": 1, "source": "x"}`, "the header that defines it is not named"},
		{`{"name": "S", "size": 1, "align": 1, "header": "h", "source": "y"}`, `source "y" is not listed`},
		{`{"name": "S", "size": 1, "align": 1, "header": "h", "source": "x", "missing": "why"}`, "it is missing, yet has a size"},
		{`{"name": "S", "header": "h", "source": "x", "missing": "why", "fields": [{"offset": 4, "name": "a"}]}`, "only names are known"},
		{`{"name": "S", "size": 1, "align": 1, "header": "h", "source": "x"}, {"name": "T", "aliases": ["S"], "size": 1, "align": 1, "header": "h", "source": "x"}`, "structure S is listed twice"},
		{`{"name": "S", "bytes": 1}`, `unknown field "bytes"`},
	} {
		_, err := Parse([]byte(`{"name": "p", "device": "d", "software": "s", "sources": [{"id": "x", "what": "y"}], "limits": [], "types": [], "nodes": [], "enums": [], "structs": [` + c.structs + `]}`))
		require.ErrorContains(t, err, c.want, c.structs)
	}
	for _, c := range []struct{ rest, want string }{
		{`"limits": [{"name": "l", "value": 0, "unit": "", "what": "", "source": "x"}]`, "limit l is 0"},
		{`"enums": [{"name": "E", "type": "float", "values": [], "source": "x"}]`, `enumeration E: type "float" is no integer`},
		{`"enums": [{"name": "E", "type": "int8_t", "values": [], "source": "x"}]`, "it has no values"},
		{`"enums": [{"name": "E", "type": "int8_t", "values": [{"name": "A", "number": 128}], "source": "x"}]`, "A is 128, int8_t holds -128 to 127"},
		{`"enums": [{"name": "E", "type": "int8_t", "values": [{"name": "A", "number": 1}, {"name": "A", "number": 2}], "source": "x"}]`, "value A is listed twice"},
		{`"nodes": [{"guid": "g", "params": "S", "in": [], "out": [], "source": "x"}]`, "GUID g: parameter structure S is not listed"},
		{`"nodes": [{"guid": "g", "suffixes": ["f64"], "in": [], "out": [], "source": "x"}]`, `suffix "f64" is no type`},
		{`"nodes": [{"guid": "g", "in": [{"name": "a", "types": ["dt"]}], "out": [], "source": "x"}]`, `operand a: type "dt" is not known`},
		{`"nodes": [{"guid": "g", "engine": "steam", "in": [], "out": [], "source": "x"}]`, `GUID g: engine "steam" is none of matrix, move, alias`},
		{`"nodes": [{"guid": "g", "in_place": "b", "in": [{"name": "a"}], "out": [], "source": "x"}]`, "GUID g: it updates b, which is no operand"},
		{`"refused": [{"guid": "g", "why": "w", "instead": "i"}]`, `refused GUID g: source "" is not listed`},
		{`"refused": [{"guid": "g", "why": "w", "source": "x"}]`, "refused GUID g: want why, and what to use instead"},
		{`"nodes": [{"guid": "g", "in": [], "out": [], "source": "x"}], "refused": [{"guid": "g", "why": "w", "instead": "i", "source": "x"}]`, "refused GUID g: it is listed as one to use, too"},
		{`"nodes": [{"guid": "g", "in": [{"name": "a", "min_rank": 3, "max_rank": 2}], "out": [], "source": "x"}]`, "operand a: rank 3 to 2"},
		{`"nodes": [{"guid": "g", "in": [{"name": "a", "optional": true}, {"name": "b"}], "out": [], "source": "x"}]`, "operand b: optional and repeated ones come last"},
	} {
		_, err := Parse([]byte(`{"name": "p", "sources": [{"id": "x", "what": "y"}], ` + c.rest + `}`))
		require.ErrorContains(t, err, c.want, c.rest)
	}
	_, err := Parse([]byte(`{"name": "p"} x`))
	require.ErrorContains(t, err, "there is something behind the profile")
	_, err = Load("gaudi9")
	require.ErrorContains(t, err, `there is no profile "gaudi9"; there are gaudi2-1.21`)
}
