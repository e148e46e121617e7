/* What the norms' kernels share: sums per channel over blocks of rows, in float, added up over the blocks in double. */
#include <stddef.h>

/* a * b + c: in one rounding where the processor has that. A compiler that chooses by itself where to do so chooses
 * differently for vectors and for the values that are left over, whose number follows from sizes and threads. */
#if defined __FMA__ || defined __ARM_FEATURE_FMA
#define FMA(a, b, c) _Generic((c), float: __builtin_fmaf, double: __builtin_fma)(a, b, c)
#else
#define FMA(a, b, c) ((a) * (b) + (c))
#endif

#define BLOCK 128        /* rows summed in float before they are added up in double */
#define SERIAL (1 << 14) /* elements below which threads cost more than they save */
#define STRIPS 32        /* parts of the rows that are summed apart and may go to threads, at most; their number never changes a bit */

/* A block is done: its sums go to s and q. */
static inline void add_block(double *restrict s, double *restrict q, const float *restrict a, const float *restrict b,
                             ptrdiff_t c) {
    for (ptrdiff_t j = 0; j < c; j++) { s[j] += a[j]; q[j] += b[j]; }
}

/* The sums of channel j over parts[count][2][c]: of strips, or of samples. */
static inline void sum_parts(double *s, double *q, const double *parts, ptrdiff_t count, ptrdiff_t c, ptrdiff_t j) {
    *s = *q = 0;
    for (ptrdiff_t part = 0; part < count; part++) {
        *s += parts[part * 2 * c + j];
        *q += parts[part * 2 * c + c + j];
    }
}
