/* Batch norm, residual addition and activation in as few passes over memory as can be.
 *
 * A tensor [N, C, H, W] in channels-last order is a matrix of N*H*W rows and C contiguous channels. Eager PyTorch reads
 * and writes that matrix about nine times for norm + add + ReLU forward; here it is two reads and one write (three and
 * one with a residual), backward five instead of eight.
 *
 * Sums are taken in float over blocks of rows and in double over blocks, relative to the first row, so that a large mean
 * costs no accuracy. The number of threads changes no bit. Comparisons are written so
 * that a NaN stays a NaN.
 */
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "sums.h"

enum { NONE = 0, RELU = 1, SILU = 2 };

/* exp(z) by 2^n * p(r), relative error about 2e-7; no branch and no call, so that it vectorises. A NaN gets lost here,
 * but every user multiplies the result by a value that holds it. */
static inline float exponential(float z) {
    z = z > -87.0f ? z : -87.0f;
    z = z < 87.0f ? z : 87.0f;
    float biased = z * 1.44269504f + 12582912.0f; /* 1.5 * 2^23: adding it rounds to a whole number */
    float whole = biased - 12582912.0f;
    float r = z - whole * 0.693359375f + whole * 2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    int bits;
    memcpy(&bits, &biased, sizeof bits);
    bits = (bits + 127) << 23;
    float power;
    memcpy(&power, &bits, sizeof power);
    return p * power;
}

static inline float sigmoid(float z) { return 1.0f / (1.0f + exponential(-z)); }

/* mean[C] and biased var[C] of x[rows, C]. Returns 0, or 1 if memory is short. */
int conveyor_moments(const float *restrict x, ptrdiff_t rows, ptrdiff_t c, double *mean, double *var) {
    int threads = rows * c < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t blocks = (rows + BLOCK - 1) / BLOCK, strips = blocks < STRIPS ? blocks : STRIPS;
    double *partial = calloc((size_t)strips * 2 * c, sizeof(double));
    float *sums = malloc((size_t)threads * 2 * c * sizeof(float));
    if (!partial || !sums) { free(partial); free(sums); return 1; }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t strip = 0; strip < strips; strip++) {
        double *s = partial + strip * 2 * c, *q = s + c;
        float *restrict a = sums + (size_t)omp_get_thread_num() * 2 * c, *restrict b = a + c;
        for (ptrdiff_t block = strip * blocks / strips; block < (strip + 1) * blocks / strips; block++) {
            ptrdiff_t end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
            memset(a, 0, 2 * c * sizeof(float));
            for (ptrdiff_t row = block * BLOCK; row < end; row++) add_moments(a, b, x + row * c, x, c);
            add_block(s, q, a, b, c);
        }
    }
    for (ptrdiff_t j = 0; j < c; j++) {
        double s, q;
        sum_parts(&s, &q, partial, strips, c, j);
        s /= rows;
        q = q / rows - s * s;
        mean[j] = s + x[j];
        var[j] = q < 0 ? 0 : q;
    }
    free(partial);
    free(sums);
    return 0;
}

/* y = act(x * scale + shift + residual); residual may be null, and is with SiLU. */
void conveyor_apply(const float *restrict x, const float *restrict residual, float *restrict y, ptrdiff_t rows,
                    ptrdiff_t c, const float *restrict scale, const float *restrict shift, int act) {
    int threads = rows * c < SERIAL ? 1 : omp_get_max_threads();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t row = 0; row < rows; row++) {
        const float *restrict in = x + row * c;
        const float *restrict add = residual ? residual + row * c : NULL;
        float *restrict out = y + row * c;
        if (add) {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) out[j] = in[j] * scale[j] + shift[j] + add[j];
            if (act == RELU)
#pragma omp simd
                for (ptrdiff_t j = 0; j < c; j++) out[j] = out[j] < 0.0f ? 0.0f : out[j];
        } else if (act == RELU) {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) {
                float z = in[j] * scale[j] + shift[j];
                out[j] = z < 0.0f ? 0.0f : z;
            }
        } else if (act == SILU) {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) {
                float z = in[j] * scale[j] + shift[j];
                out[j] = z * sigmoid(z);
            }
        } else {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) out[j] = in[j] * scale[j] + shift[j];
        }
    }
}

/* g[j] = dy[j] * act'(z[j]), z = x * scale + shift + residual; for ReLU with a residual the output y tells z's sign. */
static inline void local_gradient(float *restrict g, const float *restrict dy, const float *restrict x,
                                  const float *restrict y, ptrdiff_t c, const float *restrict scale,
                                  const float *restrict shift, int act) {
    if (act == RELU && y) {
#pragma omp simd
        for (ptrdiff_t j = 0; j < c; j++) g[j] = y[j] <= 0.0f ? 0.0f : dy[j];
    } else if (act == RELU) {
#pragma omp simd
        for (ptrdiff_t j = 0; j < c; j++) g[j] = x[j] * scale[j] + shift[j] <= 0.0f ? 0.0f : dy[j];
    } else if (act == SILU) {
#pragma omp simd
        for (ptrdiff_t j = 0; j < c; j++) {
            float z = x[j] * scale[j] + shift[j];
            float s = sigmoid(z);
            g[j] = dy[j] * s * (1.0f + z * (1.0f - s));
        }
    } else {
        memcpy(g, dy, c * sizeof(float));
    }
}

/* y = SiLU(z) by itself, for a network that is cut between a norm and its activation: the bits of the fused operation. */
void conveyor_silu(const float *restrict z, float *restrict y, ptrdiff_t count) {
#pragma omp parallel for simd schedule(static) if (count >= SERIAL)
    for (ptrdiff_t i = 0; i < count; i++) y[i] = z[i] * sigmoid(z[i]);
}

/* dz = dy * SiLU'(z). */
void conveyor_silu_backward(const float *restrict z, const float *restrict dy, float *restrict dz, ptrdiff_t count) {
#pragma omp parallel for simd schedule(static) if (count >= SERIAL)
    for (ptrdiff_t i = 0; i < count; i++) {
        float s = sigmoid(z[i]);
        dz[i] = dy[i] * s * (1.0f + z[i] * (1.0f - s));
    }
}

/* Gradients of y = act(gamma * (x - mean) * inv + beta + residual) through the batch's own statistics:
 *   g = dy * act', dgamma = inv * sum g (x - mean), dbeta = sum g, dresidual = g,
 *   dx = gamma inv (g - sum g / rows - (x - mean) inv^2 sum g (x - mean) / rows)
 * y is needed for ReLU with a residual; dresidual may be null. Returns 0, or 1 if memory is short. */
int conveyor_backward(const float *restrict x, const float *restrict dy, const float *restrict y, float *restrict dx,
                      float *restrict dresidual, ptrdiff_t rows, ptrdiff_t c, const float *restrict mean,
                      const float *restrict inv, const float *restrict gamma, const float *restrict scale,
                      const float *restrict shift, int act, float *restrict dgamma, float *restrict dbeta) {
    int threads = rows * c < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t blocks = (rows + BLOCK - 1) / BLOCK, strips = blocks < STRIPS ? blocks : STRIPS;
    double *partial = calloc((size_t)strips * 2 * c, sizeof(double));
    float *sums = malloc((size_t)threads * 3 * c * sizeof(float));
    float *factors = malloc((size_t)3 * c * sizeof(float));
    if (!partial || !sums || !factors) { free(partial); free(sums); free(factors); return 1; }
    /* SiLU's gradient is dear, so it is kept in dx between the passes; ReLU's is cheaper to find again. */
    int keep = act == SILU;
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t strip = 0; strip < strips; strip++) {
        double *s = partial + strip * 2 * c, *q = s + c;
        float *restrict a = sums + (size_t)omp_get_thread_num() * 3 * c, *restrict b = a + c, *restrict row_g = b + c;
        for (ptrdiff_t block = strip * blocks / strips; block < (strip + 1) * blocks / strips; block++) {
            ptrdiff_t end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
            memset(a, 0, 2 * c * sizeof(float));
            for (ptrdiff_t row = block * BLOCK; row < end; row++) {
                const float *restrict in = x + row * c;
                float *restrict g = keep ? dx + row * c : row_g;
                local_gradient(g, dy + row * c, in, y ? y + row * c : NULL, c, scale, shift, act);
                add_products(a, b, g, in, mean, c);
            }
            add_block(s, q, a, b, c);
        }
    }
    float *restrict k0 = factors, *restrict k1 = factors + c, *restrict k2 = factors + 2 * c;
    for (ptrdiff_t j = 0; j < c; j++) {
        double s, q;
        sum_parts(&s, &q, partial, strips, c, j);
        double factor = (double)gamma[j] * inv[j];
        dbeta[j] = (float)s;
        dgamma[j] = (float)(q * inv[j]);
        k0[j] = (float)factor;
        k1[j] = (float)(-factor * inv[j] * inv[j] * q / rows);
        k2[j] = (float)(-factor * s / rows);
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t row = 0; row < rows; row++) {
        const float *restrict in = x + row * c;
        float *restrict out = dx + row * c;
        float *restrict row_g = sums + (size_t)omp_get_thread_num() * 3 * c;
        float *g = keep ? out : dresidual ? dresidual + row * c : row_g;
        if (!keep) local_gradient(g, dy + row * c, in, y ? y + row * c : NULL, c, scale, shift, act);
#pragma omp simd
        for (ptrdiff_t j = 0; j < c; j++) out[j] = k0[j] * g[j] + k1[j] * (in[j] - mean[j]) + k2[j];
    }
    free(partial);
    free(sums);
    free(factors);
    return 0;
}
