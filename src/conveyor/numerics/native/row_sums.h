/* Sums of one row's values, for the type of values that was defined before this is included. */
/* a += d, b += d^2 with d = in - centre, for one row of c channels. */
static inline void NAME(add_moments)(float *restrict a, float *restrict b, const VALUE *restrict in,
                                     const VALUE *restrict centre, ptrdiff_t c) {
#pragma omp simd
    for (ptrdiff_t j = 0; j < c; j++) {
        float d = WIDE(in[j]) - WIDE(centre[j]);
        a[j] += d;
        b[j] = FMA(d, d, b[j]);
    }
}

/* a += g, b += g (in - centre), for one row. */
static inline void NAME(add_products)(float *restrict a, float *restrict b, const VALUE *restrict g,
                                      const VALUE *restrict in, const float *restrict centre, ptrdiff_t c) {
#pragma omp simd
    for (ptrdiff_t j = 0; j < c; j++) {
        a[j] += WIDE(g[j]);
        b[j] = FMA(WIDE(g[j]), WIDE(in[j]) - centre[j], b[j]);
    }
}
