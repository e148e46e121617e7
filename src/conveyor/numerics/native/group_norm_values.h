/* The functions of group_norm.c for one type of values: float, or bfloat16 read and written with float32 inside. */
#include "row_sums.h"

/* s[j] = sum of u, q[j] = sum of u * v over the places, with u = v = x - the first, or with dy: u = dy, v = x - centre. */
static void NAME(sums)(const VALUE *restrict x, const VALUE *restrict dy, const float *restrict centre, ptrdiff_t places,
                       ptrdiff_t c, float *restrict a, float *restrict b, double *restrict s, double *restrict q) {
    memset(s, 0, c * sizeof(double));
    memset(q, 0, c * sizeof(double));
    for (ptrdiff_t start = 0; start < places; start += BLOCK) {
        ptrdiff_t end = start + BLOCK < places ? start + BLOCK : places;
        memset(a, 0, c * sizeof(float));
        memset(b, 0, c * sizeof(float));
        for (ptrdiff_t place = start; place < end; place++) {
            if (dy) NAME(add_products)(a, b, dy + place * c, x + place * c, centre, c);
            else NAME(add_moments)(a, b, x + place * c, x, c);
        }
        add_block(s, q, a, b, c);
    }
}

/* y = gamma (x - mean) inv + beta with the mean and inv = 1 / sqrt(var + eps) of each sample's groups, which are kept
 * in mean[n, groups] and inv[n, groups]. Returns 0, or 1 if memory is short. */
int NAME(conveyor_group_norm)(const VALUE *restrict x, VALUE *restrict y, ptrdiff_t n, ptrdiff_t places, ptrdiff_t c,
                        ptrdiff_t groups, const float *restrict gamma, const float *restrict beta, double eps,
                        float *restrict mean, float *restrict inv) {
    int threads = n * places * c < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t width = c / groups;
    double *partial = malloc((size_t)threads * 2 * c * sizeof(double));
    float *scratch = malloc((size_t)threads * 4 * c * sizeof(float));
    if (!partial || !scratch) { free(partial); free(scratch); return 1; }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t sample = 0; sample < n; sample++) {
        double *s = partial + (size_t)omp_get_thread_num() * 2 * c, *q = s + c;
        float *restrict a = scratch + (size_t)omp_get_thread_num() * 4 * c;
        float *restrict scale = a + 2 * c, *restrict shift = a + 3 * c;
        const VALUE *restrict from = x + sample * places * c;
        VALUE *restrict to = y + sample * places * c;
        NAME(sums)(from, NULL, NULL, places, c, a, a + c, s, q);
        for (ptrdiff_t group = 0; group < groups; group++) {
            double m = 0, v = 0;
            for (ptrdiff_t j = group * width; j < (group + 1) * width; j++) {
                s[j] /= places;
                q[j] = q[j] / places - s[j] * s[j];
                s[j] += WIDE(from[j]);
                m += s[j];
            }
            m /= width;
            for (ptrdiff_t j = group * width; j < (group + 1) * width; j++)
                v += (q[j] < 0 ? 0 : q[j]) + (s[j] - m) * (s[j] - m);
            double r = 1.0 / sqrt(v / width + eps);
            mean[sample * groups + group] = (float)m;
            inv[sample * groups + group] = (float)r;
            for (ptrdiff_t j = group * width; j < (group + 1) * width; j++) {
                scale[j] = (float)(gamma[j] * r);
                shift[j] = (float)(beta[j] - m * gamma[j] * r);
            }
        }
        for (ptrdiff_t place = 0; place < places; place++) {
            const VALUE *restrict in = from + place * c;
            VALUE *restrict out = to + place * c;
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) out[j] = NARROW(WIDE(in[j]) * scale[j] + shift[j]);
        }
    }
    free(partial);
    free(scratch);
    return 0;
}

/* Gradients, m = number of values in a group:
 *   A = sum over the group of gamma dy (x - mean), B = sum over the group of gamma dy,
 *   dx = inv (gamma dy - B / m - (x - mean) inv^2 A / m), dgamma = sum dy (x - mean) inv, dbeta = sum dy.
 * Returns 0, or 1 if memory is short. */
int NAME(conveyor_group_norm_backward)(const VALUE *restrict x, const VALUE *restrict dy, VALUE *restrict dx, ptrdiff_t n,
                                 ptrdiff_t places, ptrdiff_t c, ptrdiff_t groups, const float *restrict gamma,
                                 const float *restrict mean, const float *restrict inv, float *restrict dgamma,
                                 float *restrict dbeta) {
    int threads = n * places * c < SERIAL ? 1 : omp_get_max_threads();
    ptrdiff_t width = c / groups;
    double *all = malloc((size_t)n * 2 * c * sizeof(double));
    float *scratch = malloc((size_t)threads * 6 * c * sizeof(float));
    if (!all || !scratch) { free(all); free(scratch); return 1; }
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t sample = 0; sample < n; sample++) {
        double *s = all + (size_t)sample * 2 * c, *q = s + c;
        float *restrict a = scratch + (size_t)omp_get_thread_num() * 6 * c;
        float *restrict centre = a + 2 * c, *restrict k0 = a + 3 * c, *restrict k1 = a + 4 * c, *restrict k2 = a + 5 * c;
        const VALUE *restrict from = x + sample * places * c, *restrict g = dy + sample * places * c;
        VALUE *restrict to = dx + sample * places * c;
        for (ptrdiff_t j = 0; j < c; j++) centre[j] = mean[sample * groups + j / width];
        NAME(sums)(from, g, centre, places, c, a, a + c, s, q);
        for (ptrdiff_t group = 0; group < groups; group++) {
            double r = inv[sample * groups + group], values = (double)width * places, total = 0, product = 0;
            for (ptrdiff_t j = group * width; j < (group + 1) * width; j++) {
                total += gamma[j] * s[j];
                product += gamma[j] * q[j];
            }
            for (ptrdiff_t j = group * width; j < (group + 1) * width; j++) {
                k0[j] = (float)(gamma[j] * r);
                k1[j] = (float)(-r * r * r * product / values);
                k2[j] = (float)(-r * total / values);
                q[j] *= r;
            }
        }
        for (ptrdiff_t place = 0; place < places; place++) {
            const VALUE *restrict in = from + place * c, *restrict d = g + place * c;
            VALUE *restrict out = to + place * c;
#pragma omp simd
            for (ptrdiff_t j = 0; j < c; j++) out[j] = NARROW(k0[j] * WIDE(d[j]) + k1[j] * (WIDE(in[j]) - centre[j]) + k2[j]);
        }
    }
    for (ptrdiff_t j = 0; j < c; j++) {
        double shift, scale;
        sum_parts(&shift, &scale, all, n, c, j);
        dbeta[j] = (float)shift;
        dgamma[j] = (float)scale;
    }
    free(all);
    free(scratch);
    return 0;
}
