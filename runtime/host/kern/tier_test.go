package kern

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSelect(t *testing.T) {
	s, err := Select("")
	require.NoError(t, err)
	require.Equal(t, Best(), s)
	for tier := Scalar; tier <= AVX512BF16; tier++ {
		s, err := Select(tier.String())
		if tier <= best {
			require.NoError(t, err)
			require.Equal(t, tier, s.Tier())
			continue
		}
		require.EqualError(t, err, "this processor cannot run "+tier.String()+" kernels; its best are "+best.String())
	}
	_, err = Select("sse")
	require.EqualError(t, err, `unknown kernels "sse"; there are scalar, avx2, avx512, avx512bf16`)
	require.Equal(t, "tier(9)", Tier(9).String())
	require.Equal(t, Scalar, Kernels{}.Tier())
}

func TestFromEnv(t *testing.T) {
	t.Setenv(Env, "scalar")
	s, err := FromEnv()
	require.NoError(t, err)
	require.Equal(t, Scalar, s.Tier())
	t.Setenv(Env, "neon")
	_, err = FromEnv()
	require.EqualError(t, err, `QUILL_KERNELS: unknown kernels "neon"; there are scalar, avx2, avx512, avx512bf16`)
	t.Setenv(Env, "")
	s, err = FromEnv()
	require.NoError(t, err)
	require.Equal(t, Best(), s)
}
