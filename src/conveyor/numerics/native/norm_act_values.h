/* The functions of norm_act.c for one type of values: float, or bfloat16 read and written with float32 inside.
 *
 * Numbers of 16 bits are rounded where the separate operations would round: after the norm, after the sum, after the
 * activation. So a network that is cut between them computes the same bits.
 */
#include "row_sums.h"

/* mean[C] and biased var[C] of x[rows, C]. Returns 0, or 1 if memory is short. */
int NAME(conveyor_moments)(const VALUE *restrict x, ptrdiff_t rows, ptrdiff_t c, double *mean, double *var) {
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
            for (ptrdiff_t row = block * BLOCK; row < end; row++) NAME(add_moments)(a, b, x + row * c, x, c);
            add_block(s, q, a, b, c);
        }
    }
    for (ptrdiff_t j = 0; j < c; j++) {
        double s, q;
        sum_parts(&s, &q, partial, strips, c, j);
        s /= rows;
        q = FMA(-s, s, q / rows);
        mean[j] = s + WIDE(x[j]);
        var[j] = q < 0 ? 0 : q;
    }
    free(partial);
    free(sums);
    return 0;
}

/* y = act(x * scale + shift + residual); residual may be null, and is with SiLU. The blocks run from the last to the first:
 * the last rows of x are still in the cache after their moments, and the first of y will be for what comes next. */
void NAME(conveyor_apply)(const VALUE *restrict x, const VALUE *restrict residual, VALUE *restrict y, ptrdiff_t rows,
                    ptrdiff_t c, const float *restrict scale, const float *restrict shift, int act) {
    int threads = rows * c < SERIAL ? 1 : omp_get_max_threads();
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t number = 0; number < rows; number++) {
        ptrdiff_t row = backwards(number, rows);
        const VALUE *restrict in = x + row * c;
        const VALUE *restrict add = residual ? residual + row * c : NULL;
        VALUE *restrict out = y + row * c;
        if (add) {
            float low = act == RELU ? 0.0f : -INFINITY;
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) {
                float z = ROUND(FMA(WIDE(in[j]), scale[j], shift[j])) + WIDE(add[j]);
                out[j] = NARROW(z < low ? low : z);
            }
        } else if (act == RELU) {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) {
                float z = FMA(WIDE(in[j]), scale[j], shift[j]);
                out[j] = NARROW(z < 0.0f ? 0.0f : z);
            }
        } else if (act == SILU) {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) {
                float z = ROUND(FMA(WIDE(in[j]), scale[j], shift[j]));
                out[j] = NARROW(z * sigmoid(z));
            }
        } else {
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) out[j] = NARROW(FMA(WIDE(in[j]), scale[j], shift[j]));
        }
    }
}

/* Batch norm of x[rows, C] with its own statistics, residual and activation: y, and in found[5][C] the mean, 1 / sqrt(var +
 * eps), scale and shift of y = act(x * scale + shift + residual), and the unbiased variance.
 * Returns 0, or 1 if memory is short. */
int NAME(conveyor_norm_act)(const VALUE *restrict x, const VALUE *restrict residual, VALUE *restrict y, ptrdiff_t rows,
                            ptrdiff_t c, const float *restrict gamma, const float *restrict beta, double eps, int act,
                            float *restrict found) {
    double *moments = malloc((size_t)3 * c * sizeof(double)), *mean = moments, *var = mean + c, *taken = var + c;
    if (!moments || NAME(conveyor_moments)(x, rows, c, mean, var)) { free(moments); return 1; }
    for (ptrdiff_t j = 0; j < c; j++) {
        double inv = 1.0 / sqrt(var[j] + eps), scale = gamma[j] * inv;
        found[j] = (float)mean[j];
        found[c + j] = (float)inv;
        found[2 * c + j] = (float)scale;
        found[4 * c + j] = (float)(var[j] * ((double)rows / (rows - 1)));
        taken[j] = mean[j] * scale;
    }
    for (ptrdiff_t j = 0; j < c; j++) found[3 * c + j] = (float)(beta[j] - taken[j]);
    free(moments);
    NAME(conveyor_apply)(x, residual, y, rows, c, found + 2 * c, found + 3 * c, act);
    return 0;
}

/* dy * act'(z) of one value, z = x * scale + shift + residual; for ReLU with a residual the output y tells z's sign. */
static inline __attribute__((always_inline)) float NAME(local_gradient)(float dy, float x, float y, float scale,
                                                                        float shift, int act, int has_y) {
    float z = ROUND(FMA(x, scale, shift));
    if (act == RELU) return (has_y ? y : z) <= 0.0f ? 0.0f : dy;
    if (act == SILU) {
        float s = sigmoid(z);
        return ROUND(dy * s * (1.0f + z * (1.0f - s)));
    }
    return dy;
}

/* The first pass over one row: a += g, b += g (x - mean); SiLU's gradient is dear, so it is kept in g, which may be null. */
static inline __attribute__((always_inline)) void NAME(first_pass)(float *restrict a, float *restrict b,
                                                                   const VALUE *restrict x, const VALUE *restrict dy,
                                                                   const VALUE *restrict y, VALUE *restrict g, ptrdiff_t c,
                                                                   const float *restrict mean, const float *restrict scale,
                                                                   const float *restrict shift, int act, int has_y) {
#pragma omp simd
    for (ptrdiff_t j = 0; j < c; j++) {
        float in = WIDE(x[j]);
        float value = NAME(local_gradient)(WIDE(dy[j]), in, has_y ? WIDE(y[j]) : 0.0f, scale[j], shift[j], act, has_y);
        if (act == SILU) g[j] = NARROW(value);
        a[j] += value;
        b[j] = FMA(value, in - mean[j], b[j]);
    }
}

/* The second: dx = k0 g + k1 (x - mean) + k2, and g itself to dresidual if that is there. */
static inline __attribute__((always_inline)) void NAME(second_pass)(VALUE *restrict dx, VALUE *restrict dresidual,
                                                                    const VALUE *restrict x, const VALUE *restrict dy,
                                                                    const VALUE *restrict y, ptrdiff_t c,
                                                                    const float *restrict mean, const float *restrict scale,
                                                                    const float *restrict shift, const float *restrict k,
                                                                    int act, int has_y, int adds) {
    const float *restrict k0 = k, *restrict k1 = k + c, *restrict k2 = k + 2 * c;
#pragma omp simd
    for (ptrdiff_t j = 0; j < c; j++) {
        float in = WIDE(x[j]), value;
        if (act == SILU) value = WIDE(dx[j]);
        else value = NAME(local_gradient)(WIDE(dy[j]), in, has_y ? WIDE(y[j]) : 0.0f, scale[j], shift[j], act, has_y);
        if (adds) dresidual[j] = NARROW(value);
        dx[j] = NARROW(FMA(k0[j], value, k1[j] * (in - mean[j])) + k2[j]);
    }
}

/* y = SiLU(z) by itself, for a network that is cut between a norm and its activation: the bits of the fused operation. */
void NAME(conveyor_silu)(const VALUE *restrict z, VALUE *restrict y, ptrdiff_t count) {
#pragma omp parallel for simd schedule(static) if (parallel : count >= SERIAL)
    for (ptrdiff_t i = 0; i < count; i++) y[i] = NARROW(WIDE(z[i]) * sigmoid(WIDE(z[i])));
}

/* dz = dy * SiLU'(z). */
void NAME(conveyor_silu_backward)(const VALUE *restrict z, const VALUE *restrict dy, VALUE *restrict dz, ptrdiff_t count) {
#pragma omp parallel for simd schedule(static) if (parallel : count >= SERIAL)
    for (ptrdiff_t i = 0; i < count; i++) {
        float s = sigmoid(WIDE(z[i]));
        dz[i] = NARROW(WIDE(dy[i]) * s * (1.0f + WIDE(z[i]) * (1.0f - s)));
    }
}

/* Gradients of y = act(gamma * (x - mean) * inv + beta + residual) through the batch's own statistics:
 *   g = dy * act', dgamma = inv * sum g (x - mean), dbeta = sum g, dresidual = g,
 *   dx = gamma inv (g - sum g / rows - (x - mean) inv^2 sum g (x - mean) / rows)
 * y is needed for ReLU with a residual; dresidual may be null. Returns 0, or 1 if memory is short. */
int NAME(conveyor_backward)(const VALUE *restrict x, const VALUE *restrict dy, const VALUE *restrict y, VALUE *restrict dx,
                      VALUE *restrict dresidual, ptrdiff_t rows, ptrdiff_t c, const float *restrict mean,
                      const float *restrict inv, const float *restrict gamma, const float *restrict scale,
                      const float *restrict shift, int act, float *restrict dgamma, float *restrict dbeta) {
    int threads = rows * c < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t blocks = (rows + BLOCK - 1) / BLOCK, strips = blocks < STRIPS ? blocks : STRIPS;
    double *partial = calloc((size_t)strips * 2 * c, sizeof(double));
    float *sums = malloc((size_t)threads * 2 * c * sizeof(float));
    float *factors = malloc((size_t)3 * c * sizeof(float));
    if (!partial || !sums || !factors) { free(partial); free(sums); free(factors); return 1; }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t strip = 0; strip < strips; strip++) {
        double *s = partial + strip * 2 * c, *q = s + c;
        float *restrict a = sums + (size_t)omp_get_thread_num() * 2 * c, *restrict b = a + c;
        for (ptrdiff_t block = strip * blocks / strips; block < (strip + 1) * blocks / strips; block++) {
            ptrdiff_t end = (block + 1) * BLOCK < rows ? (block + 1) * BLOCK : rows;
            memset(a, 0, 2 * c * sizeof(float));
            for (ptrdiff_t at = block * BLOCK * c; at < end * c; at += c) {
                const VALUE *in = x + at, *d = dy + at;
                if (act == RELU && y) NAME(first_pass)(a, b, in, d, y + at, NULL, c, mean, scale, shift, RELU, 1);
                else if (act == RELU) NAME(first_pass)(a, b, in, d, NULL, NULL, c, mean, scale, shift, RELU, 0);
                else if (act == SILU) NAME(first_pass)(a, b, in, d, NULL, dx + at, c, mean, scale, shift, SILU, 0);
                else NAME(first_pass)(a, b, in, d, NULL, NULL, c, mean, scale, shift, NONE, 0);
            }
            add_block(s, q, a, b, c);
        }
    }
    for (ptrdiff_t j = 0; j < c; j++) {
        double s, q;
        sum_parts(&s, &q, partial, strips, c, j);
        double factor = (double)gamma[j] * inv[j];
        dbeta[j] = (float)s;
        dgamma[j] = (float)(q * inv[j]);
        factors[j] = (float)factor;
        factors[c + j] = (float)(-factor * inv[j] * inv[j] * q / rows);
        factors[2 * c + j] = (float)(-factor * s / rows);
    }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t number = 0; number < rows; number++) {
        ptrdiff_t row = backwards(number, rows);
        const VALUE *in = x + row * c, *d = dy + row * c, *result = y ? y + row * c : NULL;
        VALUE *to = dx + row * c, *added = dresidual ? dresidual + row * c : NULL;
        if (act == RELU && y && added)
            NAME(second_pass)(to, added, in, d, result, c, mean, scale, shift, factors, RELU, 1, 1);
        else if (act == RELU && y) NAME(second_pass)(to, NULL, in, d, result, c, mean, scale, shift, factors, RELU, 1, 0);
        else if (act == RELU) NAME(second_pass)(to, NULL, in, d, NULL, c, mean, scale, shift, factors, RELU, 0, 0);
        else if (act == SILU) NAME(second_pass)(to, NULL, in, d, NULL, c, mean, scale, shift, factors, SILU, 0, 0);
        else NAME(second_pass)(to, NULL, in, d, NULL, c, mean, scale, shift, factors, NONE, 0, 0);
    }
    free(partial);
    free(sums);
    free(factors);
    return 0;
}
