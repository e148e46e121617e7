/* 3x3 convolutions with stride 1 and padding 1 by Winograd's minimal filtering F(4x4, 3x3), channels last.
 *
 * The output is cut into tiles of 4 x 4 pixels. A tile depends on 6 x 6 pixels of the input d and the kernel g:
 *
 *   tile = A^T [ (G g G^T) . (B^T d B) ] A
 *
 * with a product by elements (.) of 6 x 6 = 36 places. Summed over the input channels, each place is a product of
 * matrices [tiles, in] @ [in, out]: 36 multiplications for 16 pixels instead of 144. The gradient of the input is the same
 * with the kernel turned round and its channels swapped; the gradient of the kernel is the transpose of the three steps:
 *
 *   dg = G^T [ (B^T d B) . (A dtile A^T) ] G, summed over the tiles.
 *
 * The matrices are those of Toom and Cook for the points 0, +-P, +-Q and infinity. With the usual points 1 and 2 rounding
 * errors are twice as large as with these, which make them 1.7 times those of the plain sum.
 *
 * A value never depends on its neighbours in the batch or on the number of threads; only the sum over the tiles does
 * depend on which tiles there are.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

typedef float v8 __attribute__((vector_size(32)));
typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias)); /* eight numbers anywhere in memory */

#define P 0.625f
#define Q 1.5f
#define PP (P * P)
#define QQ (Q * Q)

#define PLACES 36
#define PANEL 16 /* output channels of a micro-kernel: two vectors */
#define ROWS 6   /* its rows: with two vectors each they fill the registers */

#define BLOCK_BYTES (3 << 19) /* transformed tiles of one thread's block: they should stay in its cache */

typedef struct {
    ptrdiff_t images, height, width, down, across, tiles; /* down, across: tiles of an image; tiles: of all images */
} Shape;

static Shape shape_of(ptrdiff_t images, ptrdiff_t height, ptrdiff_t width) {
    Shape s = {images, height, width, (height + 3) / 4, (width + 3) / 4, 0};
    s.tiles = images * s.down * s.across;
    return s;
}

/* Image and upper left corner of a tile's output. */
static inline void locate(const Shape *s, ptrdiff_t tile, ptrdiff_t *image, ptrdiff_t *top, ptrdiff_t *left) {
    *image = tile / (s->down * s->across);
    ptrdiff_t rest = tile % (s->down * s->across);
    *top = rest / s->across * 4;
    *left = rest % s->across * 4;
}

/* Rows a power of two apart would share a few sets of the cache. */
static inline ptrdiff_t pitch_of(ptrdiff_t channels) { return channels % 256 ? channels : channels + 16; }

/* ---- the transforms, one dimension each, on vectors of channels ---- */

/* out = B^T d */
static inline void transform_input(const v8 *d, ptrdiff_t step, v8 *out, ptrdiff_t out_step) {
    v8 d0 = d[0], d1 = d[step], d2 = d[2 * step], d3 = d[3 * step], d4 = d[4 * step], d5 = d[5 * step];
    v8 even = d4 - QQ * d2, odd = P * d3 - (P * QQ) * d1;
    v8 even2 = d4 - PP * d2, odd2 = Q * d3 - (Q * PP) * d1;
    out[0] = (PP * QQ) * d0 - (PP + QQ) * d2 + d4;
    out[out_step] = even + odd;
    out[2 * out_step] = even - odd;
    out[3 * out_step] = even2 + odd2;
    out[4 * out_step] = even2 - odd2;
    out[5 * out_step] = (PP * QQ) * d1 - (PP + QQ) * d3 + d5;
}

/* out = A^T m */
static inline void transform_output(const v8 *m, ptrdiff_t step, v8 *out, ptrdiff_t out_step) {
    v8 m0 = m[0], m1 = m[step], m2 = m[2 * step], m3 = m[3 * step], m4 = m[4 * step], m5 = m[5 * step];
    v8 sum = m1 + m2, difference = m1 - m2, sum2 = m3 + m4, difference2 = m3 - m4;
    out[0] = m0 + sum + sum2;
    out[out_step] = P * difference + Q * difference2;
    out[2 * out_step] = PP * sum + QQ * sum2;
    out[3 * out_step] = (P * PP) * difference + (Q * QQ) * difference2 + m5;
}

/* out = A y */
static inline void transform_gradient(const v8 *y, ptrdiff_t step, v8 *out, ptrdiff_t out_step) {
    v8 y0 = y[0], y1 = y[step], y2 = y[2 * step], y3 = y[3 * step];
    v8 even = y0 + PP * y2, odd = P * y1 + (P * PP) * y3;
    v8 even2 = y0 + QQ * y2, odd2 = Q * y1 + (Q * QQ) * y3;
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
static inline void transform_kernel(const v8 *g, ptrdiff_t step, v8 *out, ptrdiff_t out_step) {
    v8 g0 = g[0], g1 = g[step], g2 = g[2 * step];
    v8 even = P_WEIGHT * g0 + (P_WEIGHT * PP) * g2, odd = (P_WEIGHT * P) * g1;
    v8 even2 = Q_WEIGHT * g0 + (Q_WEIGHT * QQ) * g2, odd2 = (Q_WEIGHT * Q) * g1;
    out[0] = ZERO_WEIGHT * g0;
    out[out_step] = even + odd;
    out[2 * out_step] = even - odd;
    out[3 * out_step] = even2 + odd2;
    out[4 * out_step] = even2 - odd2;
    out[5 * out_step] = g2;
}

/* out = G^T u */
static inline void transform_kernel_gradient(const v8 *u, ptrdiff_t step, v8 *out, ptrdiff_t out_step) {
    v8 u0 = u[0], u1 = u[step], u2 = u[2 * step], u3 = u[3 * step], u4 = u[4 * step], u5 = u[5 * step];
    v8 sum = P_WEIGHT * (u1 + u2), sum2 = Q_WEIGHT * (u3 + u4);
    out[0] = ZERO_WEIGHT * u0 + sum + sum2;
    out[out_step] = (P_WEIGHT * P) * (u1 - u2) + (Q_WEIGHT * Q) * (u3 - u4);
    out[2 * out_step] = PP * sum + QQ * sum2 + u5;
}

/* ---- two dimensions: pictures to places and back ---- */

/* V[place][tile][channel] = B^T d B for all channels of one tile; beyond the border the picture is zero. */
static void tile_of_input(const float *x, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *v, ptrdiff_t plane) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    const float *base = x + image * s->height * s->width * channels;
    int inside = top > 0 && left > 0 && top + 5 <= s->height && left + 5 <= s->width;
    for (ptrdiff_t c = 0; c < channels; c += 8) {
        v8 d[PLACES], half[PLACES], out[PLACES];
        for (int i = 0; i < 6; i++) {
            ptrdiff_t row = top + i - 1;
            const float *line = base + (row * s->width + left - 1) * channels + c;
            for (int j = 0; j < 6; j++) {
                ptrdiff_t column = left + j - 1;
                if (inside || (row >= 0 && row < s->height && column >= 0 && column < s->width))
                    d[i * 6 + j] = *(const v8u *)(line + j * channels);
                else d[i * 6 + j] = (v8){0};
            }
        }
        for (int j = 0; j < 6; j++) transform_input(d + j, 6, half + j, 6);
        for (int i = 0; i < 6; i++) transform_input(half + i * 6, 1, out + i * 6, 1);
        for (int place = 0; place < PLACES; place++) *(v8u *)(v + place * plane + c) = out[place];
    }
}

/* The tile of y from M[place][tile][channel], A^T m A, cut at the border. */
static void tile_of_output(const float *m, ptrdiff_t plane, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *y,
                           const float *bias) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    ptrdiff_t lines = s->height - top < 4 ? s->height - top : 4, columns = s->width - left < 4 ? s->width - left : 4;
    float *base = y + ((image * s->height + top) * s->width + left) * channels;
    for (ptrdiff_t c = 0; c < channels; c += 8) {
        v8 in[PLACES], half[24], out[16];
        for (int place = 0; place < PLACES; place++) in[place] = *(const v8u *)(m + place * plane + c);
        for (int j = 0; j < 6; j++) transform_output(in + j, 6, half + j, 6);
        for (int i = 0; i < 4; i++) transform_output(half + i * 6, 1, out + i * 4, 1);
        v8 added = {0};
        if (bias) added = *(const v8u *)(bias + c);
        for (ptrdiff_t i = 0; i < lines; i++)
            for (ptrdiff_t j = 0; j < columns; j++)
                *(v8u *)(base + (i * s->width + j) * channels + c) = out[i * 4 + j] + added;
    }
}

/* Z[place][tile][channel] = A dy A^T; beyond the border the gradient is zero. */
static void tile_of_gradient(const float *dy, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *z,
                             ptrdiff_t plane) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    const float *base = dy + ((image * s->height + top) * s->width + left) * channels;
    for (ptrdiff_t c = 0; c < channels; c += 8) {
        v8 in[16], half[24], out[PLACES];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                if (top + i < s->height && left + j < s->width)
                    in[i * 4 + j] = *(const v8u *)(base + (i * s->width + j) * channels + c);
                else in[i * 4 + j] = (v8){0};
            }
        for (int j = 0; j < 4; j++) transform_gradient(in + j, 4, half + j, 4);
        for (int i = 0; i < 6; i++) transform_gradient(half + i * 4, 1, out + i * 6, 1);
        for (int place = 0; place < PLACES; place++) *(v8u *)(z + place * plane + c) = out[place];
    }
}

/* ---- kernels: w[out][3][3][in] to U[place][panel of 16 results][channel summed over][16] ---- */

static inline void places_of_kernel(const float *w, ptrdiff_t step, v8 *out) {
    v8 g[9], half[18];
    for (int k = 0; k < 9; k++) g[k] = *(const v8u *)(w + k * step);
    for (int j = 0; j < 3; j++) transform_kernel(g + j, 3, half + j, 3);
    for (int i = 0; i < 6; i++) transform_kernel(half + i * 3, 1, out + i * 6, 1);
}

#ifdef __clang__
#define SHUFFLE __builtin_shufflevector
#else /* GCC has that name from version 12 on only */
typedef int i8 __attribute__((vector_size(32)));
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

/* Eight vectors of eight, `step` apart, as the rows of a matrix; its columns go to `out`. */
static inline void transpose(const v8 *in, ptrdiff_t step, float *out, ptrdiff_t out_step) {
#define LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
    v8 pairs[8], fours[8];
    for (int i = 0; i < 4; i++) {
        pairs[2 * i] = LOW(in[2 * i * step], in[(2 * i + 1) * step]);
        pairs[2 * i + 1] = HIGH(in[2 * i * step], in[(2 * i + 1) * step]);
    }
    for (int i = 0; i < 2; i++) {
        fours[4 * i] = LOW2(pairs[4 * i], pairs[4 * i + 2]);
        fours[4 * i + 1] = HIGH2(pairs[4 * i], pairs[4 * i + 2]);
        fours[4 * i + 2] = LOW2(pairs[4 * i + 1], pairs[4 * i + 3]);
        fours[4 * i + 3] = HIGH2(pairs[4 * i + 1], pairs[4 * i + 3]);
    }
    for (int i = 0; i < 4; i++) {
        *(v8u *)(out + i * out_step) = SHUFFLE(fours[i], fours[4 + i], 0, 1, 2, 3, 8, 9, 10, 11);
        *(v8u *)(out + (i + 4) * out_step) = SHUFFLE(fours[i], fours[4 + i], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* For the forward pass: results are the out channels of one panel, the sum goes over the in channels. */
static void panel_forward(const float *w, ptrdiff_t in, ptrdiff_t panel, float *u, ptrdiff_t plane) {
    v8 places[PANEL * PLACES];
    for (ptrdiff_t c = 0; c < in; c += 8) {
        for (int o = 0; o < PANEL; o++)
            places_of_kernel(w + (panel * PANEL + o) * 9 * in + c, in, places + o * PLACES);
        for (int place = 0; place < PLACES; place++)
            for (int half = 0; half < 2; half++)
                transpose(places + half * 8 * PLACES + place, PLACES,
                          u + place * plane + (panel * in + c) * PANEL + half * 8, PANEL);
    }
}

/* For the input's gradient: results are in channels, the sum goes over the out channels, and the kernel is turned. */
static void panel_backward(const float *w, ptrdiff_t in, ptrdiff_t out, ptrdiff_t panel, float *u, ptrdiff_t plane) {
    for (ptrdiff_t o = 0; o < out; o++)
        for (int half = 0; half < 2; half++) {
            v8 places[PLACES];
            places_of_kernel(w + (o * 9 + 8) * in + panel * PANEL + half * 8, -in, places);
            for (int place = 0; place < PLACES; place++)
                *(v8u *)(u + place * plane + (panel * out + o) * PANEL + half * 8) = places[place];
        }
}

/* ---- the products ---- */

/* c[rows][16] (+)= sum over k of a[row * row_step + k * k_step] * b[k * b_step + 0..15] */
static inline __attribute__((always_inline)) void micro(int rows, const float *a, ptrdiff_t row_step, ptrdiff_t k_step,
                                                        const float *b, ptrdiff_t b_step, ptrdiff_t depth, float *c,
                                                        ptrdiff_t c_step, int add) {
    v8 sums[ROWS][2];
    for (int i = 0; i < rows; i++) sums[i][0] = sums[i][1] = (v8){0};
    for (ptrdiff_t k = 0; k < depth; k++) {
        v8 b0 = *(const v8u *)(b + k * b_step), b1 = *(const v8u *)(b + k * b_step + 8);
#pragma GCC unroll 6
        for (int i = 0; i < rows; i++) {
            float s = a[i * row_step + k * k_step];
            v8 value = {s, s, s, s, s, s, s, s};
            sums[i][0] += value * b0;
            sums[i][1] += value * b1;
        }
    }
    for (int i = 0; i < rows; i++) {
        v8u *to = (v8u *)(c + i * c_step);
        if (add) {
            sums[i][0] += to[0];
            sums[i][1] += to[1];
        }
        to[0] = sums[i][0];
        to[1] = sums[i][1];
    }
}

/* The same for any number of rows, with constants for the compiler. */
static inline __attribute__((always_inline)) void panel_product(ptrdiff_t rows, const float *a, ptrdiff_t row_step,
                                                                ptrdiff_t k_step, const float *b, ptrdiff_t b_step,
                                                                ptrdiff_t depth, float *c, ptrdiff_t c_step, int add) {
    ptrdiff_t row = 0;
    for (; row + ROWS <= rows; row += ROWS)
        micro(ROWS, a + row * row_step, row_step, k_step, b, b_step, depth, c + row * c_step, c_step, add);
    a += row * row_step;
    c += row * c_step;
    switch (rows - row) {
        case 5: micro(5, a, row_step, k_step, b, b_step, depth, c, c_step, add); break;
        case 4: micro(4, a, row_step, k_step, b, b_step, depth, c, c_step, add); break;
        case 3: micro(3, a, row_step, k_step, b, b_step, depth, c, c_step, add); break;
        case 2: micro(2, a, row_step, k_step, b, b_step, depth, c, c_step, add); break;
        case 1: micro(1, a, row_step, k_step, b, b_step, depth, c, c_step, add); break;
        default: break;
    }
}

static void product_of_tiles(ptrdiff_t tiles, const float *v, ptrdiff_t v_pitch, const float *u, ptrdiff_t depth, float *m,
                             ptrdiff_t m_pitch) {
    panel_product(tiles, v, v_pitch, 1, u, PANEL, depth, m, m_pitch, 0);
}

static void product_over_tiles(ptrdiff_t rows, const float *z, ptrdiff_t z_pitch, const float *v, ptrdiff_t v_pitch,
                               ptrdiff_t tiles, float *du, ptrdiff_t du_pitch, int add) {
    if (add) panel_product(rows, z, 1, z_pitch, v, v_pitch, tiles, du, du_pitch, 1);
    else panel_product(rows, z, 1, z_pitch, v, v_pitch, tiles, du, du_pitch, 0);
}

/* Tiles whose places fit into the caches of all threads, of `pitch` floats each; whole micro-kernels where they can be. */
static ptrdiff_t tiles_of_block(const Shape *s, ptrdiff_t pitch, int threads) {
    ptrdiff_t fitting = BLOCK_BYTES / (ptrdiff_t)(PLACES * sizeof(float)) * threads / pitch;
    fitting = fitting / (ROWS * 4) * (ROWS * 4);
    if (fitting < ROWS * 4) fitting = ROWS * 4;
    return fitting < s->tiles ? fitting : s->tiles;
}

/* Threads for so much work: the few tiles of small pictures are not worth waking others for. */
static int threads_for(const Shape *s, ptrdiff_t in, ptrdiff_t out) {
    return s->tiles * in * out < 1 << 17 ? 1 : omp_get_max_threads();
}

static float *floats(ptrdiff_t count) {
    void *found = NULL;
    return posix_memalign(&found, 64, (size_t)count * sizeof(float)) ? NULL : found;
}

/* y[n, h, w, out] = convolution of x[n, h, w, in] with w[out, 3, 3, in] + bias (or null); with `turned` the gradient of the
 * input: x is dy with the layer's out channels and y is dx with its in channels. `in` and `out` are always the layer's,
 * multiples of 16. Returns 0, or 1 if memory is short. */
int conveyor_winograd(const float *x, const float *w, const float *bias, float *y, ptrdiff_t images, ptrdiff_t height,
                      ptrdiff_t width, ptrdiff_t in, ptrdiff_t out, int turned) {
    const Shape s = shape_of(images, height, width);
    ptrdiff_t depth = turned ? out : in, results = turned ? in : out, panels = results / PANEL;
    ptrdiff_t v_pitch = pitch_of(depth), m_pitch = pitch_of(results);
    int threads = threads_for(&s, in, out);
    ptrdiff_t block = tiles_of_block(&s, v_pitch + m_pitch, threads);
    ptrdiff_t u_plane = depth * results + 16, v_plane = block * v_pitch + 16, m_plane = block * m_pitch + 16;
    float *u = floats(PLACES * u_plane), *v = floats(PLACES * v_plane), *m = floats(PLACES * m_plane);
    int failed = !u || !v || !m;
    if (!failed) {
#pragma omp parallel num_threads(threads)
        {
#pragma omp for schedule(static)
            for (ptrdiff_t panel = 0; panel < panels; panel++) {
                if (turned) panel_backward(w, in, out, panel, u, u_plane);
                else panel_forward(w, in, panel, u, u_plane);
            }
            for (ptrdiff_t start = 0; start < s.tiles; start += block) {
                ptrdiff_t count = s.tiles - start < block ? s.tiles - start : block;
#pragma omp for schedule(static)
                for (ptrdiff_t t = 0; t < count; t++) tile_of_input(x, &s, depth, start + t, v + t * v_pitch, v_plane);
#pragma omp for schedule(static)
                for (ptrdiff_t job = 0; job < PLACES * panels; job++) {
                    ptrdiff_t place = job / panels, panel = job % panels;
                    product_of_tiles(count, v + place * v_plane, v_pitch, u + place * u_plane + panel * depth * PANEL,
                                     depth, m + place * m_plane + panel * PANEL, m_pitch);
                }
#pragma omp for schedule(static)
                for (ptrdiff_t t = 0; t < count; t++)
                    tile_of_output(m + t * m_pitch, m_plane, &s, results, start + t, y, bias);
            }
        }
    }
    free(u);
    free(v);
    free(m);
    return failed;
}

/* dw[out, 3, 3, in] of x[n, h, w, in] and dy[n, h, w, out]. Returns 0, or 1 if memory is short. */
int conveyor_winograd_weights(const float *x, const float *dy, float *dw, ptrdiff_t images, ptrdiff_t height,
                              ptrdiff_t width, ptrdiff_t in, ptrdiff_t out) {
    const Shape s = shape_of(images, height, width);
    ptrdiff_t v_pitch = pitch_of(in), z_pitch = pitch_of(out), panels = in / PANEL;
    int threads = threads_for(&s, in, out);
    ptrdiff_t block = tiles_of_block(&s, v_pitch + z_pitch, threads);
    ptrdiff_t v_plane = block * v_pitch + 16, z_plane = block * z_pitch + 16, u_plane = in * out + 16;
    float *v = floats(PLACES * v_plane), *z = floats(PLACES * z_plane), *du = floats(PLACES * u_plane);
    int failed = !v || !z || !du;
    if (!failed) {
#pragma omp parallel num_threads(threads)
        {
            for (ptrdiff_t start = 0; start < s.tiles; start += block) {
                ptrdiff_t count = s.tiles - start < block ? s.tiles - start : block;
#pragma omp for schedule(static)
                for (ptrdiff_t t = 0; t < count; t++) {
                    tile_of_input(x, &s, in, start + t, v + t * v_pitch, v_plane);
                    tile_of_gradient(dy, &s, out, start + t, z + t * z_pitch, z_plane);
                }
#pragma omp for schedule(static)
                for (ptrdiff_t job = 0; job < PLACES * panels; job++) {
                    ptrdiff_t place = job / panels, panel = job % panels;
                    product_over_tiles(out, z + place * z_plane, z_pitch, v + place * v_plane + panel * PANEL, v_pitch,
                                       count, du + place * u_plane + panel * PANEL, in, start > 0);
                }
            }
#pragma omp for schedule(static)
            for (ptrdiff_t o = 0; o < out; o++)
                for (ptrdiff_t c = 0; c < in; c += 8) {
                    v8 u[PLACES], half[18], g[9];
                    for (int place = 0; place < PLACES; place++)
                        u[place] = *(const v8u *)(du + place * u_plane + o * in + c);
                    for (int j = 0; j < 6; j++) transform_kernel_gradient(u + j, 6, half + j, 6);
                    for (int i = 0; i < 3; i++) transform_kernel_gradient(half + i * 6, 1, g + i * 3, 1);
                    for (int k = 0; k < 9; k++) *(v8u *)(dw + (o * 9 + k) * in + c) = g[k];
                }
        }
    }
    free(v);
    free(z);
    free(du);
    return failed;
}
