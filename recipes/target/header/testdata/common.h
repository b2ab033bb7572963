/* What the other header includes: names of numbers, and types that both use. */
#ifndef COMMON_H
#define COMMON_H

#include <cstddef>
#include <cstdint>

#define MAX_DIMS 25
#define SHORT_DIMS (MAX_DIMS / 5)

static const uint32_t TITLE_LENGTH = 1 << 3;
constexpr int LAST = 'c' - 'a' + 0x1'0; // 18
using TSize = uint64_t;

struct synAxisParams
{
    unsigned axis;
};
typedef struct synAxisParams synConcatenateParams;
typedef synAxisParams synSplitParams, *synAxisParamsPtr;

#endif // COMMON_H
