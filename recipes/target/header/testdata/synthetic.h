// A header of our own with the names of public structures, in all the ways of writing
// that such headers have. It compiles as C++17.
#pragma once

#include <string>
#include "common.h"

#if defined(__cplusplus) && __cplusplus >= 201103L
#  define WHEN_CPP11 1
#elif defined NOTHING
#  error not reached
#else
#  define WHEN_CPP11 0
#endif

#ifdef NOT_DEFINED
struct Broken { this is not read };
#else
#define EXPORT
#define LARGER(a, b) \
    static_assert(sizeof(a) > sizeof(b), "sizeof(" #a ") > sizeof(" #b ")")
#endif

class CommandSubmission;
struct LaterOnly;

extern "C" {
enum synPadding
{
    PADDING_EXPLICIT, /* 0 */
    PADDING_SAME
};
}

typedef enum _CastF32RoundMode_t
{
    CAST_ROUND_HALF_NE = 0,
    CAST_ROUND_DOWN    = 1,
    CAST_ROUND_UP,
    CAST_ROUND_SR,
    CAST_ROUND_ZERO,
    CAST_ROUND_DEFAULT,
    CAST_ROUND_HALF_AZ,
    CAST_ROUND_SFTZ = 1 << 3,
    CAST_ROUND_LATER = CAST_ROUND_SFTZ + 1, // not in the profile
} CastF32RoundMode_t;

typedef enum
{
    K_TENSOR_NONE,
    K_TENSOR_SHAPE
} KTensorType_t;

enum class Small : uint8_t { A = 3, B };
enum Negative { MINUS = -2, ZERO = MINUS + 2, PLUS = ~0 + 2 };
enum { NAMELESS = sizeof(uint64_t) * 2 };

typedef union _fint_t
{
    float f;
    int   i;
} fint_t;

struct EXPORT synGEMMParams
{
    synGEMMParams(bool transpose_a = false, bool transpose_b = false) : transpose_a(transpose_a), transpose_b(transpose_b) {}

    bool transpose_a;
    bool transpose_b;
};

struct synTransposeParamsNDims
{
    unsigned int tensorDim;
    uint32_t     permutation[MAX_DIMS];
};

struct synSliceAxisParamsV2
{
    unsigned axis;
    unsigned _structPadding = 0;
    uint64_t begin, end;
};

struct synActivationParams
{
    synActivationParams() : reluEnable(false), numChannels{1}, slope(-1.5e-1f) { pwl = 7; this->alpha = numChannelsDefault() + 1; }
    synActivationParams(const synActivationParams& other) { *this = other; }
    ~synActivationParams() {}

    synActivationParams& operator=(const synActivationParams& other)
    {
        if (this != &other)
        {
            numChannels = other.numChannels;
        }
        return *this;
    }
    bool operator==(const synActivationParams& o) const { return numChannels == o.numChannels; }
    explicit operator bool() const { return reluEnable; }
    static int numChannelsDefault() { return 1; }
    int get() const { return static_cast<int>(numChannels); }

    bool     reluEnable;
    uint16_t structPadding = 0;
    uint32_t numChannels;
    float    slope;
    uint64_t pwl;
    uint64_t alpha; // by a function: no default
};

struct synConvolutionParams
{
    synConvolutionParams() : kW(1), kH(1), activation(), nGroups(WHEN_CPP11 ? 1 : 2) {}
    synConvolutionParams(unsigned w, unsigned h) : kW(w), kH(h), nGroups(1) {}
    unsigned kW;
    unsigned kH;
    struct synActivationParams activation;
    unsigned nGroups;
};

struct synConvolutionParamsV2 : synConvolutionParams
{
    synPadding paddingType; // in the tail padding of the base
    unsigned   reserved[9] {};
    synConvolutionParamsV2() : synConvolutionParams(), paddingType(PADDING_SAME) {}
};
LARGER(synConvolutionParamsV2, synConvolutionParams);

struct synConvolution3DParams
{
    enum Axis { W, H, D, AXES };
    unsigned kernel[AXES];
    unsigned stride[Axis::AXES - 1];
    synConvolution3DParams()
    {
        kernel[W] = 1;
        kernel[H] = 2;
        kernel[D] = 3;
        stride[1] = 4;
    }
};

namespace ns_CastKernel
{
struct Params
{
    CastF32RoundMode_t round_mode;
};
struct ParamsV2 : public Params
{
    unsigned int seed;
};
struct ParamsV3 : public ParamsV2
{
    bool safe;
};
struct ParamsV4 : public ParamsV3
{
    bool inTail; // byte 9
};
LARGER(ParamsV2, Params);
} // namespace ns_CastKernel

namespace ns_ConstantKernel
{
struct Params { fint_t constant; };
}
namespace ns_RangeKernel
{
struct Params
{
    fint_t start;
    fint_t limit;
    fint_t delta;
};
}

namespace ns_TopkNodeV2
{
struct Params { unsigned int bsw; };
struct ParamsV2 : public Params { unsigned int axis; };
struct ParamsV3 : public ParamsV2 { bool bottomK; };
struct ParamsV4 : public ParamsV3
{
    bool isStable;
    bool isVcData;
    KTensorType_t kType;
};
} // namespace ns_TopkNodeV2

namespace ns_DropoutKernel
{
struct ParamsOptionalMaskOut
{
    float ratio;
    unsigned int seed;
    bool disableMaskOut;
};
}

namespace ns_Sdpa
{
struct Params
{
    float scale;
    bool is_causal;
    ns_DropoutKernel::ParamsOptionalMaskOut dropout;
    bool is_inference;
};
struct ParamsV9 : Params
{
    bool more; // the base has no bases or the like, so its tail padding is its own
};
}

namespace outer::inner
{
namespace deep
{
struct Everything
{
    char       letter   = 'x';
    signed char sign    = -1;
    int8_t     tiny;
    std::uint16_t shorter;
    long long  wide     = -(1LL << 40);
    unsigned long int word;
    size_t     size     = sizeof(double) * TITLE_LENGTH;
    double     ratio    = 1. / 4;
    float      eps { 1e-5f };
    const char* name    = nullptr;
    void*      pointers[2][3];
    short      grid[2][SHORT_DIMS] = { 1, 2 };
    Small      small    = Small::B;
    Negative   negative = PLUS;
    enum { FIRST, SECOND } local = SECOND;
    struct Point { short x; double y; } point;
    Point      points[2];
    union { float asFloat; uint32_t asBits; };
    union Choice { uint8_t bytes[8]; uint64_t whole; } choice;
    struct { bool yes; int count = LAST; };
    bool       last     = !false && NAMELESS == 16;
};
typedef Everything All;

class Hidden
{
public:
    Hidden() = default;
    double d;
private:
    bool b;
};
struct AfterHidden : Hidden { bool tail; };

struct Defaulted { Defaulted() = default; double d; bool b; };
struct AfterDefaulted : Defaulted { bool tail; };
struct Valued { double d; bool b = true; };
struct AfterValued : Valued { bool tail; };
struct Made { Made(int) {} double d; bool b; };
struct AfterMade : Made { bool tail; AfterMade() : Made(1) {} };
struct Gone { Gone(const Gone&) = delete; double d; bool b; };
struct AfterGone : Gone { bool tail; };
struct Ended { ~Ended() {} double d; bool b; };
struct AfterEnded : Ended { bool tail; };
struct Assigned { Assigned& operator=(const Assigned&) { return *this; } double d; bool b; };
struct AfterAssigned : Assigned { bool tail; };
struct Holds { Made made; bool b; Holds() : made(1) {} };
struct HoldsMore { AfterDefaulted inner; bool b; };
struct AfterHoldsMore : HoldsMore { bool tail; };
struct HoldsArray { AfterDefaulted inner[2]; float f; bool b; };
struct AfterHoldsArray : HoldsArray { bool tail; };
struct Empty {};
struct OnEmpty : Empty { int n; };
struct Two : ns_CastKernel::Params, ns_TopkNodeV2::ParamsV3 { bool tail; };
} // namespace deep
} // namespace outer::inner

namespace ns_Short = outer::inner::deep;
struct ByAlias { ns_Short::Made made; ns_Short::Everything::Point point; ByAlias() : made(1) {} };

struct Spread
{
    int  first;
    char letter __attribute__((aligned(4)));
    [[maybe_unused]] unsigned char last[3] __attribute__((aligned(1 << 2)));
};

struct Chosen { union Value { double d; uint8_t b; } v; bool b; };

// Without a layout that a profile can have.
struct WithText { std::string text; };
struct WithBits { unsigned a : 3; };
struct UsesSkipped { WithText inner; };
struct Virtual { virtual void f() {} int n; };
