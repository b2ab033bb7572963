package native

import (
	"encoding/binary"
	"errors"
	"reflect"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestChecksum(t *testing.T) {
	require.EqualValues(t, 0, checksum(nil))
	require.EqualValues(t, 0xAD0424F3, checksum([]byte{1}))
	// A CRC without a final inversion is 0 over what ends in it.
	text := []byte("recipe")
	require.EqualValues(t, 0, checksum(binary.BigEndian.AppendUint32(text, checksum(text))))
}

// drawRecipe fills every field at random.
func drawRecipe(t *rapid.T) *Recipe {
	r := new(Recipe)
	fill(t, reflect.ValueOf(r).Elem())
	for i := range r.Nodes {
		r.Nodes[i].Blobs = nil
		for range r.Programs {
			r.Nodes[i].Blobs = append(r.Nodes[i].Blobs, rapid.Uint32().Draw(t, "blobs"))
		}
	}
	for i := range r.PatchPoints {
		p := &r.PatchPoints[i]
		if p.Type %= 4; p.Type == SyncObject {
			p.Address, p.Section = 0, 0
		} else {
			p.Tensor = 0
		}
	}
	for i := range r.ConstSections {
		s := &r.ConstSections[i]
		if !s.HasData {
			s.Data = nil
		} else {
			s.Size = uint64(len(s.Data))
		}
	}
	for i := range r.Sync {
		if !r.LegacySync {
			r.Sync[i].Object, r.Sync[i].Engines = 0, 0
		}
	}
	if r.Shapes == 0 {
		r.ShapePlane = nil
	}
	return r
}

func fill(t *rapid.T, v reflect.Value) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			fill(t, v.Field(i))
		}
	case reflect.Slice:
		n := rapid.IntRange(0, 3).Draw(t, "n")
		if n == 0 {
			return
		}
		v.Set(reflect.MakeSlice(v.Type(), n, n))
		fallthrough
	case reflect.Array:
		for i := range v.Len() {
			fill(t, v.Index(i))
		}
	case reflect.String:
		v.SetString(rapid.StringMatching(`[a-z_0-9]{0,6}`).Draw(t, "text"))
	case reflect.Bool:
		v.SetBool(rapid.Bool().Draw(t, "bool"))
	case reflect.Float64:
		v.SetFloat(rapid.Float64().Draw(t, "float"))
	default:
		v.SetUint(rapid.Uint64Max(1<<v.Type().Bits()-1).Draw(t, "number"))
	}
}

// What is written is read as the same, and written as the same bytes.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRecipe(t)
		data, err := r.Encode()
		require.NoError(t, err)
		read, err := Decode(data)
		require.NoError(t, err)
		require.Equal(t, r, read)
		again, err := read.Encode()
		require.NoError(t, err)
		require.Equal(t, data, again)
	})
}

// Every file that is cut is refused, and every bit that is changed is found.
func TestDamage(t *testing.T) {
	data, err := sample().Encode()
	require.NoError(t, err)
	for n := range data {
		_, err := Decode(data[:n])
		require.Error(t, err, "the first %d bytes", n)
		for bit := range 8 {
			bad := append([]byte(nil), data...)
			bad[n] ^= 1 << bit
			_, err := Decode(bad)
			require.Error(t, err, "bit %d of byte %d", bit, n)
		}
	}
}

// sample is a file with something of everything.
func sample() *Recipe {
	return &Recipe{
		Major: 1, Minor: 26,
		Execution: []byte("execute!"), Patching: []byte("patching"), Dynamic: []byte("dyn!"),
		Blobs:    []Blob{{ExecutionBlob, 8, 0}, {PatchingBlob, 8, 0}, {DynamicBlob, 4, 0}},
		Programs: [][]uint64{{0, 1}, {2}},
		Activate: []Job{{1, 0}}, Execute: []Job{{2, 1}},
		ArcJobs: []ArcJob{{Engine: 1, Filter: 2, Static: Commands{3, []byte("s")}, Dynamic: Commands{4, []byte("dd")}}},
		Tensors: []Tensor{{Name: "x", Section: 4, Size: 32, DType: 2, Rank: 2, Sizes: [12]uint64{4, 4}, Order: 1<<32 - 1, Layout: []byte("WH\x00"), Views: []uint32{7}}},
		H2D:     1, PermuteViews: []Tensor{{Name: "v"}},
		ProgramData:   []byte("kernels"),
		ConstSections: []ConstSection{{2, 5, true, []byte("cc")}, {Size: 9, Section: 6}},
		ProgramBlobs:  []ProgramBlob{{7, 0, 0, 1}},
		PatchPoints:   []PatchPoint{{Type: DoubleWord, Blob: 1, Word: 1, Address: 16, Section: 4}, {Type: SyncObject, Tensor: 3, Node: 1}},
		Groups:        []Group{{1, []uint32{0}}}, SyncObjects: Group{2, []uint32{1}},
		SectionBlobs: []SectionBlobs{{4, []uint32{1}}},
		Nodes:        []NodeProgram{{1, []uint32{1, 0}}},
		Sections:     5, Workspaces: []uint64{256, 0, 128},
		Debug:      Debug{1, 2, 3, []DebugNode{{Name: "n", Operation: "gemm", DataType: "bf16", WorkingEngines: []uint8{1}}}, []uint64{9}, 8},
		LegacySync: true, Sync: []SyncInfo{{1, 2, 3, 4, 5, 6}},
		Conf:      []Conf{{ConfDeviceType, 4}, {ConfCompileTime, 1700000000}},
		NopOffset: 1, NopSection: 2, NopValid: 1, Discard: 3, Degrade: 4,
		Name: "sample", Shapes: 1, ShapePlane: []byte("plane"),
	}
}

// Errors name the part, the byte and the value.
func TestErrors(t *testing.T) {
	data, err := sample().Encode()
	require.NoError(t, err)
	for _, c := range []struct {
		name string
		harm func([]byte) []byte
		want string
	}{
		{"empty", func([]byte) []byte { return nil }, "checksum at byte 0: the file has 0 bytes, too few for one"},
		{"a huge buffer", func(b []byte) []byte { b[15] = 0x7f; return b }, "execution blobs at byte 16: 9151314442816847880 elements of at least 1 bytes are wanted, "},
		{"another type of patch point", func(b []byte) []byte {
			i := strings.Index(string(b), "kernels") + len("kernels") + 4 + 11 + 2 + 11 + 4 + 26 + 8
			b[i] = 9
			return b
		}, "type 9 of a patch point, want 0 to 3"},
		{"a text without end", func(b []byte) []byte {
			b[strings.Index(string(b), "sample")+6] = 'e'
			return b
		}, "recipe name at byte "},
		{"a flag of two", func(b []byte) []byte {
			b[strings.Index(string(b), "cc")-1] = 2
			return b
		}, "a flag is 2, want 0 or 1"},
		{"another checksum", func(b []byte) []byte { b[len(b)-1]++; return b }, "the file is damaged or of another layout"},
	} {
		t.Run(c.name, func(t *testing.T) {
			r, err := Decode(c.harm(append([]byte(nil), data...)))
			require.ErrorContains(t, err, c.want)
			_, checksum := errors.AsType[*ChecksumError](err)
			require.Equal(t, checksum, r != nil)
		})
	}
	static := sample()
	static.Shapes, static.ShapePlane = 0, nil
	data, err = static.Encode()
	require.NoError(t, err)
	long := append(data[:len(data)-4:len(data)-4], 0, 0, 0, 0, 0)
	_, err = Decode(long)
	require.ErrorContains(t, err, "checksum at byte "+"")
	require.ErrorContains(t, err, "1 bytes lie between the last field and the checksum")
}

// What cannot be written says so.
func TestEncodeRefuses(t *testing.T) {
	for want, harm := range map[string]func(*Recipe){
		"has a zero byte":                               func(r *Recipe) { r.Name = "a\x00b" },
		"a node has numbers of blobs for 1 of 2":        func(r *Recipe) { r.Nodes[0].Blobs = []uint32{1} },
		"section 5 has 2 bytes of data, and says 3":     func(r *Recipe) { r.ConstSections[0].Size = 3 },
		"type 4 of a patch point, want 0 to 3":          func(r *Recipe) { r.PatchPoints[0].Type = 4 },
		`node "n" has 65536 regions, more than 16 bits`: func(r *Recipe) { r.Debug.Nodes[0].WorkingEngines = make([]uint8, 1<<16) },
	} {
		r := sample()
		harm(r)
		_, err := r.Encode()
		require.ErrorContains(t, err, want)
	}
}

// Counts that lie take no memory.
func TestMemory(t *testing.T) {
	data, err := sample().Encode()
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for i := range len(data) - 8 {
		bad := append([]byte(nil), data...)
		binary.LittleEndian.PutUint32(bad[i:], 1<<31)
		_, _ = Decode(bad)
	}
	runtime.ReadMemStats(&after)
	each := (after.TotalAlloc - before.TotalAlloc) / uint64(len(data))
	require.Less(t, each, uint64(64*len(data)))
}

func FuzzDecode(f *testing.F) {
	data, err := sample().Encode()
	require.NoError(f, err)
	f.Add(data)
	f.Fuzz(func(t *testing.T, data []byte) {
		r, _ := Decode(data)
		if r == nil {
			// Most of what is changed fails at the checksum only if the fields end well.
			return
		}
		again, err := r.Encode()
		require.NoError(t, err)
		require.Equal(t, data[:len(data)-4], again[:len(again)-4])
	})
}
