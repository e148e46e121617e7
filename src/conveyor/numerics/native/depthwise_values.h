/* The functions of depthwise.c for one type of values: float, or bfloat16 read and written with float32 inside. */

/* One line i of the kernel, `lanes` (at most TILE) channels from `first` on: sums[k][lanes], added in float for each
 * line of the output and in double over them. */
static inline void NAME(one_line)(const VALUE *restrict x, const VALUE *restrict dy, const Shape *s, ptrdiff_t first,
                                  ptrdiff_t i, int k, int lanes, double *restrict total) {
    for (int j = 0; j < k * TILE; j++) total[j] = 0;
    for (ptrdiff_t n = 0; n < s->batch; n++) {
        for (ptrdiff_t h = 0; h < s->out_height; h++) {
            ptrdiff_t row = h * s->stride + i - s->pad_top;
            if (row < 0 || row >= s->height) continue;
            const VALUE *restrict in = x + ((n * s->height + row) * s->width) * s->channels + first;
            const VALUE *restrict g = dy + ((n * s->out_height + h) * s->out_width) * s->channels + first;
            float sums[WIDEST][TILE] = {{0}};
            for (ptrdiff_t w = 0; w < s->out_width; w++, g += s->channels) {
                ptrdiff_t left = w * s->stride - s->pad_left;
                if (left >= 0 && left + k <= s->width) {
                    const VALUE *restrict p = in + left * s->channels;
                    for (int j = 0; j < k; j++, p += s->channels)
#pragma omp simd
                        for (int c = 0; c < lanes; c++) sums[j][c] += WIDE(g[c]) * WIDE(p[c]);
                } else {
                    for (int j = 0; j < k; j++) {
                        if (left + j < 0 || left + j >= s->width) continue;
                        const VALUE *restrict p = in + (left + j) * s->channels;
#pragma omp simd
                        for (int c = 0; c < lanes; c++) sums[j][c] += WIDE(g[c]) * WIDE(p[c]);
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
int NAME(conveyor_depthwise)(const VALUE *restrict x, const VALUE *restrict dy, float *restrict dw, ptrdiff_t batch,
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
            if (lanes == TILE && k == 3) NAME(one_line)(x, dy, &shape, first, i, 3, TILE, total);
            else if (lanes == TILE && k == 5) NAME(one_line)(x, dy, &shape, first, i, 5, TILE, total);
            else NAME(one_line)(x, dy, &shape, first, i, k, lanes, total);
            for (int j = 0; j < k; j++)
                for (int c = 0; c < lanes; c++) dw[((first + c) * k + i) * k + j] = (float)total[j * TILE + c];
        }
    }
    return 0;
}

/* One pixel of dx, `lanes` channels: the sum over the taps that some output saw. */
static inline void NAME(one_pixel)(const VALUE *const *from, const float *const *taps, int count, ptrdiff_t first,
                                   VALUE *restrict dx, int lanes) {
    float sum[TILE] = {0};
    for (int t = 0; t < count; t++) {
        const VALUE *restrict g = from[t] + first;
        const float *restrict tap = taps[t] + first;
#pragma omp simd
        for (int c = 0; c < lanes; c++) sum[c] += WIDE(g[c]) * tap[c];
    }
#pragma omp simd
    for (int c = 0; c < lanes; c++) dx[first + c] = NARROW(sum[c]);
}

/* dx[batch, height, width, channels] of dy[batch, out_height, out_width, channels] and weights[k, k, channels]:
 * dx[n, y, x, c] = sum over i, j of weights[i, j, c] * dy[n, (y + pad - i) / stride, (x + pad - j) / stride, c].
 * Returns 0, or 1 for a kernel that is too wide. */
int NAME(conveyor_depthwise_input)(const VALUE *restrict dy, const float *restrict weights, VALUE *restrict dx,
                                   ptrdiff_t batch, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels,
                                   ptrdiff_t out_height, ptrdiff_t out_width, int k, ptrdiff_t stride, ptrdiff_t pad_top,
                                   ptrdiff_t pad_left) {
    if (k > WIDEST) return 1;
#pragma omp parallel for schedule(static)
    for (ptrdiff_t line = 0; line < batch * height; line++) {
        const VALUE *image = dy + line / height * out_height * out_width * channels;
        const VALUE *from[WIDEST * WIDEST];
        const float *taps[WIDEST * WIDEST];
        for (ptrdiff_t w = 0; w < width; w++) {
            int count = 0;
            for (int i = 0; i < k; i++) {
                ptrdiff_t row = line % height + pad_top - i;
                if (row < 0 || row % stride || row / stride >= out_height) continue;
                for (int j = 0; j < k; j++) {
                    ptrdiff_t column = w + pad_left - j;
                    if (column < 0 || column % stride || column / stride >= out_width) continue;
                    from[count] = image + (row / stride * out_width + column / stride) * channels;
                    taps[count++] = weights + (i * k + j) * channels;
                }
            }
            VALUE *pixel = dx + (line * width + w) * channels;
            ptrdiff_t first = 0;
            for (; first + TILE <= channels; first += TILE) NAME(one_pixel)(from, taps, count, first, pixel, TILE);
            if (first < channels) NAME(one_pixel)(from, taps, count, first, pixel, (int)(channels - first));
        }
    }
    return 0;
}
