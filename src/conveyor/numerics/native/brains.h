/* Values of the kernels that follow: bfloat16, the upper half of a float32. Included once for each set of them.
 *
 * Rounding is to nearest, ties to even, in whole numbers: the processor's own instruction would flush the smallest numbers
 * to zero, and only some have it. A NaN stays one: it gets the quiet bit, and nothing is added to it.
 */
#include <stdint.h>
#include <string.h>

#ifndef CONVEYOR_BRAINS_H
#define CONVEYOR_BRAINS_H
static inline float from_brain(uint16_t value) {
    uint32_t bits = (uint32_t)value << 16;
    float wide;
    memcpy(&wide, &bits, sizeof wide);
    return wide;
}
static inline uint16_t to_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t nearest = bits + 0x7FFFu + (bits >> 16 & 1u);
    return (uint16_t)((value != value ? bits | 0x400000u : nearest) >> 16);
}
/* The float32 that to_brain's result stands for. */
static inline float round_brain(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    uint32_t nearest = bits + 0x7FFFu + (bits >> 16 & 1u);
    bits = (value != value ? bits | 0x400000u : nearest) & 0xFFFF0000u;
    memcpy(&value, &bits, sizeof value);
    return value;
}
#endif

#undef VALUE
#undef NAME
#undef WIDE
#undef NARROW
#undef ROUND
#define VALUE uint16_t
#define NAME(name) name##_brain
#define WIDE(value) from_brain(value)
#define NARROW(value) to_brain(value)
#define ROUND(value) round_brain(value)
