/* The one-dimensional transforms of Winograd's filtering F(4, 3), on vectors of as many channels as a register holds.
 *
 * Those of Toom and Cook for the points 0, +-P, +-Q and infinity. With the usual points 1 and 2 rounding errors are twice as
 * large as with these, which make them 1.7 times those of the plain sum.
 */
#ifndef CONVEYOR_WINOGRAD_TRANSFORMS_H
#define CONVEYOR_WINOGRAD_TRANSFORMS_H

#include <stddef.h>

#ifdef __AVX512F__
#define WIDTH 16
#else
#define WIDTH 8
#endif

typedef float vec __attribute__((vector_size(WIDTH * 4)));

#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)

/* out = B^T d */
static inline void transform_input(const vec *d, ptrdiff_t step, vec *out, ptrdiff_t out_step) {
    vec d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    vec even = d4 - QQ * d2, odd = P * d3 - (P * QQ) * d1;
    vec even2 = d4 - PP * d2, odd2 = Q * d3 - (Q * PP) * d1;
    out[0] = (PP * QQ) * d0 - (PP + QQ) * d2 + d4;
    out[out_step] = even + odd;
    out[2 * out_step] = even - odd;
    out[3 * out_step] = even2 + odd2;
    out[4 * out_step] = even2 - odd2;
    out[5 * out_step] = (PP * QQ) * d1 - (PP + QQ) * d3 + d5;
}

/* out = A^T m */
static inline void transform_output(const vec *m, ptrdiff_t step, vec *out, ptrdiff_t out_step) {
    vec m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step], m5 = m[5 * step];
    vec sum = m1 + m2, difference = m1 - m2, sum2 = m3 + m4, difference2 = m3 - m4;
    out[0] = m0 + sum + sum2;
    out[out_step] = P * difference + Q * difference2;
    out[2 * out_step] = PP * sum + QQ * sum2;
    out[3 * out_step] = (P * PP) * difference + (Q * QQ) * difference2 + m5;
}

/* out = A y */
static inline void transform_gradient(const vec *y, ptrdiff_t step, vec *out, ptrdiff_t out_step) {
    vec y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
    vec even = y0 + PP * y2, odd = P * y1 + (P * PP) * y3;
    vec even2 = y0 + QQ * y2, odd2 = Q * y1 + (Q * QQ) * y3;
    out[0] = y0;
    out[out_step] = even + odd;
    out[2 * out_step] = even - odd;
    out[3 * out_step] = even2 + odd2;
    out[4 * out_step] = even2 - odd2;
    out[5 * out_step] = y3;
}

#define ZERO_WEIGHT (1.0f / (PP * QQ))
#define P_WEIGHT (1.0f / (2.0f * PP * (PP - QQ)))
#define Q_WEIGHT (1.0f / (2.0f * QQ * (QQ - PP)))

/* out = G g */
static inline void transform_kernel(const vec *g, ptrdiff_t step, vec *out, ptrdiff_t out_step) {
    vec g0 = g[0], g1 = g[step], g2 = g[2 * step];
    vec even = P_WEIGHT * g0 + (P_WEIGHT * PP) * g2, odd = (P_WEIGHT * P) * g1;
    vec even2 = Q_WEIGHT * g0 + (Q_WEIGHT * QQ) * g2, odd2 = (Q_WEIGHT * Q) * g1;
    out[0] = ZERO_WEIGHT * g0;
    out[out_step] = even + odd;
    out[2 * out_step] = even - odd;
    out[3 * out_step] = even2 + odd2;
    out[4 * out_step] = even2 - odd2;
    out[5 * out_step] = g2;
}

/* out = G^T u */
static inline void transform_kernel_gradient(const vec *u, ptrdiff_t step, vec *out, ptrdiff_t out_step) {
    vec u0 = u[0], u1 = u[step], u2 = u[2 * step], u3 = u[3 * step], u4 = u[4 * step], u5 = u[5 * step];
    vec sum = P_WEIGHT * (u1 + u2), sum2 = Q_WEIGHT * (u3 + u4);
    out[0] = ZERO_WEIGHT * u0 + sum + sum2;
    out[out_step] = (P_WEIGHT * P) * (u1 - u2) + (Q_WEIGHT * Q) * (u3 - u4);
    out[2 * out_step] = PP * sum + QQ * sum2 + u5;
}

#endif
