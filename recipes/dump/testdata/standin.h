// A stand-in for the vendor's structure of experts' parameters, which no public header
// has: numbers, order and types are made up, with a hole, to test what an imported
// layout does.
enum MoeActivationMode_t : unsigned char { MOE_ACTIVATION_MODE_RELU, MOE_ACTIVATION_MODE_GELU = 3, MOE_ACTIVATION_MODE_SILU };
enum MoeFlags_t { MOE_FLAGS_PERMUTED_WEIGHTS = 4, MOE_FLAGS_FUSED_GEMM = 32, MOE_FLAGS_CALC_AMAX = 64 };
namespace ns_MoeKernel
{
struct ParamsV2
{
    struct { int experts_max; int experts_min; } router;
    struct { MoeActivationMode_t activation; } experts;
    unsigned flags;
};
}
