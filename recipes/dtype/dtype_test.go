package dtype

import (
	"math"
	"math/big"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNames(t *testing.T) {
	for d := I8; d <= F32; d++ {
		got, ok := Parse(d.String())
		require.True(t, ok)
		require.Equal(t, d, got)
		text, err := d.MarshalText()
		require.NoError(t, err)
		var back Type
		require.NoError(t, back.UnmarshalText(text))
		require.Equal(t, d, back)
		require.NotEqual(t, d.IsFloat(), d.IsInt())
	}
	_, ok := Parse("invalid")
	require.False(t, ok)
	_, err := Invalid.MarshalText()
	require.Error(t, err)
	require.Error(t, new(Type).UnmarshalText([]byte("f64")))
	require.Equal(t, "dtype(99)", Type(99).String())
	require.Zero(t, Type(99).Size())
}

// A type holds what it has a finite number for.
func TestHolds(t *testing.T) {
	for d, c := range map[Type]struct{ in, out []float64 }{
		I8:   {[]float64{-128, 0, 127}, []float64{-129, 128, 0.5}},
		U8:   {[]float64{0, 255}, []float64{-1, 256}},
		I32:  {[]float64{math.MinInt32, math.MaxInt32}, []float64{math.MinInt32 - 1, math.MaxInt32 + 1}},
		I64:  {[]float64{math.MinInt64, 1 << 62}, []float64{1 << 63}},
		F32:  {[]float64{0.1, 1e-300, math.MaxFloat32, -math.MaxFloat32}, []float64{3.5e38, -3.5e38}},
		BF16: {[]float64{0.1, 1e-300, 3.38e38}, []float64{math.MaxFloat32, -math.MaxFloat32}},
	} {
		for _, v := range c.in {
			require.True(t, d.Holds(v), "%s, %v", d, v)
		}
		for _, v := range append(c.out, math.NaN(), math.Inf(1), math.Inf(-1)) {
			require.False(t, d.Holds(v), "%s, %v", d, v)
		}
	}
}

// Every bf16 widens and rounds back to itself.
func TestBF16RoundTrip(t *testing.T) {
	for i := 0; i < 1<<16; i++ {
		f := FromBF16(uint16(i))
		if f != f {
			require.True(t, math.IsNaN(float64(RoundBF16(f))))
			continue
		}
		require.Equal(t, uint16(i), ToBF16(f))
	}
}

// Rounding picks the nearest of the two neighbours, the even one on a tie.
func TestBF16Nearest(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		f := math.Float32frombits(rapid.Uint32().Draw(t, "bits"))
		got := RoundBF16(f)
		if f != f {
			if got == got {
				t.Fatalf("NaN became %v", got)
			}
			return
		}
		if math.Float32bits(f)&0x7fffffff >= 0x7f7f8000 {
			if !math.IsInf(float64(got), int(math.Copysign(1, float64(f)))) && math.Abs(float64(got)) != float64(FromBF16(0x7f7f)) {
				t.Fatalf("%v became %v", f, got)
			}
			return
		}
		lo := FromBF16(uint16(math.Float32bits(f) >> 16)) // towards zero
		hi := FromBF16(uint16(math.Float32bits(f)>>16) + 1)
		dist := func(a float32) *big.Float {
			d := new(big.Float).Sub(big.NewFloat(float64(f)), big.NewFloat(float64(a)))
			return d.Abs(d)
		}
		want := lo
		switch c := dist(lo).Cmp(dist(hi)); {
		case c > 0, c == 0 && math.Float32bits(lo)>>16&1 == 1:
			want = hi
		}
		if math.Float32bits(got) != math.Float32bits(want) {
			t.Fatalf("%x rounded to %x, want %x", math.Float32bits(f), math.Float32bits(got), math.Float32bits(want))
		}
	})
}
