/* Batch norm, residual addition and activation in as few passes over memory as can be.
 *
 * A tensor [N, C, H, W] in channels-last order is a matrix of N*H*W rows and C contiguous channels. Eager PyTorch reads
 * and writes that matrix about nine times for norm + add + ReLU forward; here it is two reads and one write (three and
 * one with a residual), backward five instead of eight.
 *
 * Sums are taken in float over blocks of rows and in double over blocks, relative to the first row, so that a large mean
 * costs no accuracy. The number of threads changes no bit. Comparisons are written so that a NaN stays a NaN.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "sums.h"

enum { NONE = 0, RELU = 1, SILU = 2 };

/* 1 / (1 + exp(-z)), the latter by 2^n * p(r), relative error about 2e-7; no branch and no call, so that it vectorises. A
 * NaN gets lost here, but every user multiplies the result by a value that holds it. */
static inline float sigmoid(float z) {
    z = z < 87.0f ? z : 87.0f;
    z = z > -87.0f ? z : -87.0f;
    float biased = FMA(-z, 1.44269504f, 12582912.0f); /* 1.5 * 2^23: adding it rounds to a whole number */
    float whole = biased - 12582912.0f;
    float r = FMA(whole, 2.12194440e-4f, FMA(-whole, 0.693359375f, -z));
    float p = 1.9875691500e-4f;
    p = FMA(p, r, 1.3981999507e-3f);
    p = FMA(p, r, 8.3334519073e-3f);
    p = FMA(p, r, 4.1665795894e-2f);
    p = FMA(p, r, 1.6666665459e-1f);
    p = FMA(p, r, 5.0000001201e-1f);
    p = FMA(p * r, r, r) + 1.0f;
    int bits;
    memcpy(&bits, &biased, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return 1.0f / FMA(p, power, 1.0f);
}

/* The row that comes at place `number` when blocks are taken from the last to the first, forwards within each. */
static inline ptrdiff_t backwards(ptrdiff_t number, ptrdiff_t rows) {
    ptrdiff_t start = rows - (number / BLOCK + 1) * BLOCK;
    return start < 0 ? number % BLOCK : start + number % BLOCK;
}

#include "floats.h"
#include "norm_act_values.h"
#include "brains.h"
#include "norm_act_values.h"
