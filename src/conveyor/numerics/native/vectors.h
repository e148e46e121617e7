/* Vectors of the widest kind that this processor has, and what an activation does to one. */
#ifndef CONVEYOR_VECTORS_H
#define CONVEYOR_VECTORS_H

#include <stddef.h>
#include <string.h>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#ifdef __AVX512F__
#define WIDTH 16 /* floats of a vector */
#define ROWS 12  /* rows of a micro-kernel: with two vectors each they fill the registers */
#else
#define WIDTH 8
#define ROWS 6
#endif

typedef float vec __attribute__((vector_size(4 * WIDTH)));
typedef float vec_at __attribute__((vector_size(4 * WIDTH), aligned(4), may_alias)); /* anywhere in memory */
typedef int ivec __attribute__((vector_size(4 * WIDTH)));

enum { NONE, RELU, SILU, RELU6, HARDSWISH, SIGMOID, HARDSIGMOID };

static inline vec load(const float *from) { return *(const vec_at *)from; }
static inline void store(float *to, vec value) { *(vec_at *)to = value; }
/* The first `lanes` floats of a vector, if it does not have all; the rest is zero. */
static inline vec load_some(const float *from, ptrdiff_t lanes) {
    vec value = {0};
    if (lanes >= WIDTH) return load(from);
    memcpy(&value, from, lanes * sizeof(float));
    return value;
}

static inline void store_some(float *to, vec value, ptrdiff_t lanes) {
    if (lanes >= WIDTH) store(to, value);
    else memcpy(to, &value, lanes * sizeof(float));
}
static inline vec all(float value) { return value - (vec){0}; }

/* A NaN stays a NaN. */
#if defined(__AVX512F__)
static inline vec at_least(vec x, float low) { return (vec)_mm512_max_ps((__m512)all(low), (__m512)x); }
static inline vec at_most(vec x, float high) { return (vec)_mm512_min_ps((__m512)all(high), (__m512)x); }
static inline vec about_one_over(vec x) { return (vec)_mm512_rcp14_ps((__m512)x); }
#elif defined(__AVX2__)
static inline vec at_least(vec x, float low) { return (vec)_mm256_max_ps((__m256)all(low), (__m256)x); }
static inline vec at_most(vec x, float high) { return (vec)_mm256_min_ps((__m256)all(high), (__m256)x); }
static inline vec about_one_over(vec x) { return (vec)_mm256_rcp_ps((__m256)x); }
#else
static inline vec choose(ivec condition, vec yes, vec no) {
    return (vec)((condition & (ivec)yes) | (~condition & (ivec)no));
}
static inline vec at_least(vec x, float low) { return choose(x < all(low), all(low), x); }
static inline vec at_most(vec x, float high) { return choose(x > all(high), all(high), x); }
static inline vec about_one_over(vec x) { return 1.0f / x; }
#endif

/* 1 / x to the last bit or two, by one step of Newton's: a division takes longer. */
static inline vec one_over(vec x) {
    vec near = about_one_over(x);
    return near + near * (1.0f - x * near);
}

/* 2^t for -126 <= t <= 126 by 2^n * p(t - n), relative error about 1e-7 and rounding. */
static inline vec power_of_two(vec t) {
    vec shifted = t + 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    vec f = t - (shifted - 12582912.0f);
    vec p = all(1.3264726623e-3f);
    p = p * f + 9.6715129591e-3f;
    p = p * f + 5.5507337478e-2f;
    p = p * f + 2.4022242080e-1f;
    p = p * f + 6.9314697759e-1f;
    p = p * f + 1.0f;
    return (vec)((ivec)p + ((ivec)shifted << 23)); /* n into the exponent; what was added to it is shifted out */
}

/* 1 / (1 + exp(-x)); a NaN stays one. */
static inline vec sigmoid(vec x) {
    return one_over(1.0f + power_of_two(at_most(at_least(x * -1.44269504f, -126.0f), 126.0f)));
}

static inline vec activated(vec x, int activation) {
    switch (activation) {
        case RELU: return at_least(x, 0.0f);
        case SILU: return x * sigmoid(x);
        case RELU6: return at_most(at_least(x, 0.0f), 6.0f);
        case HARDSWISH: return x * at_most(at_least(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
        case SIGMOID: return sigmoid(x);
        case HARDSIGMOID: return at_most(at_least(x + 3.0f, 0.0f), 6.0f) * (1.0f / 6.0f);
        default: return x;
    }
}

#endif
