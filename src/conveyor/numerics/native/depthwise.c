/* The gradient of a depthwise convolution's weights, channels last.
 *
 *   dw[c, i, j] = sum over n, h, w of dy[n, h, w, c] * x[n, h * stride + i - pad, w * stride + j - pad, c]
 *
 * Channels do not touch each other, so they are cut into tiles of 16 (two vectors of 8), and the threads share the tiles:
 * the result does not depend on their number. For one line of the kernel a tile's sums stay in registers over all
 * images; a tile of the pictures stays in the cache from one line of the kernel to the next.
 */
#include <stddef.h>

#define TILE 16
#define WIDEST 7 /* kernel width up to which the sums of a line fit */

typedef struct {
    ptrdiff_t batch, height, width, channels, out_height, out_width, stride, pad_top, pad_left;
} Shape;

/* One line i of the kernel, `lanes` (at most TILE) channels from `first` on: sums[k][lanes], added in float for each
 * line of the output and in double over them. */
static inline void one_line(const float *restrict x, const float *restrict dy, const Shape *s, ptrdiff_t first,
                            ptrdiff_t i, int k, int lanes, double *restrict total) {
    for (int j = 0; j < k * TILE; j++) total[j] = 0;
    for (ptrdiff_t n = 0; n < s->batch; n++) {
        for (ptrdiff_t h = 0; h < s->out_height; h++) {
            ptrdiff_t row = h * s->stride + i - s->pad_top;
            if (row < 0 || row >= s->height) continue;
            const float *restrict in = x + ((n * s->height + row) * s->width) * s->channels + first;
            const float *restrict g = dy + ((n * s->out_height + h) * s->out_width) * s->channels + first;
            float sums[WIDEST][TILE] = {{0}};
            for (ptrdiff_t w = 0; w < s->out_width; w++, g += s->channels) {
                ptrdiff_t left = w * s->stride - s->pad_left;
                if (left >= 0 && left + k <= s->width) {
                    const float *restrict p = in + left * s->channels;
                    for (int j = 0; j < k; j++, p += s->channels)
#pragma omp simd
                        for (int c = 0; c < lanes; c++) sums[j][c] += g[c] * p[c];
                } else {
                    for (int j = 0; j < k; j++) {
                        if (left + j < 0 || left + j >= s->width) continue;
                        const float *restrict p = in + (left + j) * s->channels;
#pragma omp simd
                        for (int c = 0; c < lanes; c++) sums[j][c] += g[c] * p[c];
                    }
                }
            }
            for (int j = 0; j < k; j++)
                for (int c = 0; c < lanes; c++) total[j * TILE + c] += sums[j][c];
        }
    }
}

/* dw[channels, k, k] of x[batch, height, width, channels] and dy[batch, out_height, out_width, channels]. Returns 0, or 1
 * for a kernel that is too wide. */
int conveyor_depthwise(const float *restrict x, const float *restrict dy, float *restrict dw, ptrdiff_t batch,
                       ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels, ptrdiff_t out_height, ptrdiff_t out_width,
                       int k, ptrdiff_t stride, ptrdiff_t pad_top, ptrdiff_t pad_left) {
    if (k > WIDEST) return 1;
    const Shape shape = {batch, height, width, channels, out_height, out_width, stride, pad_top, pad_left};
    ptrdiff_t tiles = (channels + TILE - 1) / TILE;
#pragma omp parallel for schedule(static)
    for (ptrdiff_t tile = 0; tile < tiles; tile++) {
        ptrdiff_t first = tile * TILE;
        int lanes = channels - first < TILE ? (int)(channels - first) : TILE;
        double total[WIDEST * TILE];
        for (int i = 0; i < k; i++) {
            /* Constants let the compiler keep the sums of the usual kernels in registers. */
            if (lanes == TILE && k == 3) one_line(x, dy, &shape, first, i, 3, TILE, total);
            else if (lanes == TILE && k == 5) one_line(x, dy, &shape, first, i, 5, TILE, total);
            else one_line(x, dy, &shape, first, i, k, lanes, total);
            for (int j = 0; j < k; j++)
                for (int c = 0; c < lanes; c++) dw[((first + c) * k + i) * k + j] = (float)total[j * TILE + c];
        }
    }
    return 0;
}
