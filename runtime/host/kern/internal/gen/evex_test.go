package main

import (
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

// The encodings are those of GNU as.
func TestVDPBF16PS(t *testing.T) {
	for _, c := range []struct {
		dst, src1 int
		src2      any
		want      string
	}{
		{0, 1, 2, "62f2764852c2"},
		{29, 30, 31, "62020e4052ef"},
		{16, 15, 8, "62c2064852c0"},
		{9, 7, 17, "6232464852c9"},
		{0, 1, mem{base: "AX"}, "62f276485200"},
		{23, 24, mem{base: "R13"}, "62c23e40527d00"},
		{5, 4, mem{base: "BP"}, "62f25e48526d00"},
		{5, 4, mem{base: "SP"}, "62f25e48522c24"},
		{5, 4, mem{base: "R12"}, "62d25e48522c24"},
		{11, 28, mem{base: "DI", disp: 64}, "62721e40525f01"},
		{11, 28, mem{base: "DI", disp: -8192}, "62721e40525f80"},
		{11, 28, mem{base: "R9", disp: 8128}, "62521e4052597f"},
		{11, 28, mem{base: "R9", disp: 8192}, "62521e40529900200000"},
		{11, 28, mem{base: "R9", disp: 4}, "62521e40529904000000"},
		{3, 24, mem{base: "BX", index: "R8", scale: 2}, "62b23e40521c43"},
		{19, 24, mem{base: "R14", index: "SI", scale: 4, disp: 128}, "62c23e40525cb602"},
		{19, 24, mem{base: "BP", index: "R15", scale: 8}, "62a23e40525cfd00"},
		{0, 1, mem{base: "AX", bcast: true}, "62f276585200"},
		{30, 1, mem{base: "CX", disp: 4, bcast: true}, "62627658527101"},
		{30, 17, mem{base: "R10", disp: 508, bcast: true}, "6242765052727f"},
		{30, 17, mem{base: "R10", disp: 512, bcast: true}, "6242765052b200020000"},
		{30, 17, mem{base: "R11", index: "DX", scale: 4, disp: -20, bcast: true}, "62427650527493fb"},
	} {
		require.Equal(t, c.want, hex.EncodeToString(vdpbf16ps(c.dst, c.src1, c.src2)), "%v", c)
	}
}

func TestData(t *testing.T) {
	var a asm
	a.data([]byte{1, 2, 3, 4, 5, 6, 7}, "X")
	require.Equal(t, "\tLONG $0x04030201; WORD $0x0605; BYTE $0x07 // X\n", a.String())
}
