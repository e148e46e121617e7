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
 * A value never depends on its neighbours in the batch or on the number of threads; only the sum over the tiles does
 * depend on which tiles there are.
 */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "winograd_transforms.h"

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

/* The tile of y from M[place][tile][channel], A^T m A + bias (or null), cut at the border. */
static void tile_of_output(const float *m, ptrdiff_t plane, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *y,
                           const float *bias) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    ptrdiff_t lines = s->height - top < 4 ? s->height - top : 4, columns = s->width - left < 4 ? s->width - left : 4;
    ptrdiff_t corner = ((image * s->height + top) * s->width + left) * channels;
    for (ptrdiff_t c = 0; c < channels; c += 8) {
        v8 in[PLACES], half[24], out[16];
        for (int place = 0; place < PLACES; place++) in[place] = *(const v8u *)(m + place * plane + c);
        for (int j = 0; j < 6; j++) transform_output(in + j, 6, half + j, 6);
        for (int i = 0; i < 4; i++) transform_output(half + i * 6, 1, out + i * 4, 1);
        v8 added = {0};
        if (bias) added = *(const v8u *)(bias + c);
        for (ptrdiff_t i = 0; i < lines; i++)
            for (ptrdiff_t j = 0; j < columns; j++)
                *(v8u *)(y + corner + (i * s->width + j) * channels + c) = out[i * 4 + j] + added;
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
static int threads_for(const Shape *s, ptrdiff_t in, ptrdiff_t out, int threads) {
    return s->tiles * in * out < 1 << 17 ? 1 : threads;
}

static float *floats(ptrdiff_t count) {
    void *found = NULL;
    return posix_memalign(&found, 64, (size_t)count * sizeof(float)) ? NULL : found;
}

/* What one convolution works with: sizes, and the memory for a block of tiles. */
typedef struct {
    Shape s;
    ptrdiff_t depth, results, block, v_pitch, m_pitch, v_plane, m_plane;
    int threads;
    float *v, *m;
} Work;

/* Memory for sums over `depth` channels; returns 0, or 1 if it is short. */
static int begin(Work *k, ptrdiff_t images, ptrdiff_t height, ptrdiff_t width, ptrdiff_t depth, ptrdiff_t results,
                 int threads) {
    k->s = shape_of(images, height, width);
    k->depth = depth;
    k->results = results;
    k->threads = threads_for(&k->s, depth, results, threads);
    k->v_pitch = pitch_of(depth);
    k->m_pitch = pitch_of(results);
    k->block = tiles_of_block(&k->s, k->v_pitch + k->m_pitch, k->threads);
    k->v_plane = k->block * k->v_pitch + 16;
    k->m_plane = k->block * k->m_pitch + 16;
    k->v = floats(PLACES * k->v_plane);
    k->m = floats(PLACES * k->m_plane);
    return !k->v || !k->m;
}

static void end(Work *k) {
    free(k->v);
    free(k->m);
}

/* All tiles, by the threads that call it together: transform the input, multiply with u, transform the result. */
static void all_tiles(const Work *k, const float *x, const float *u, ptrdiff_t u_plane, float *y, const float *bias) {
    const Shape *s = &k->s;
    ptrdiff_t panels = k->results / PANEL;
    for (ptrdiff_t start = 0; start < s->tiles; start += k->block) {
        ptrdiff_t count = s->tiles - start < k->block ? s->tiles - start : k->block;
#pragma omp for schedule(static)
        for (ptrdiff_t t = 0; t < count; t++)
            tile_of_input(x, s, k->depth, start + t, k->v + t * k->v_pitch, k->v_plane);
#pragma omp for schedule(static)
        for (ptrdiff_t job = 0; job < PLACES * panels; job++) {
            ptrdiff_t place = job / panels, panel = job % panels;
            product_of_tiles(count, k->v + place * k->v_plane, k->v_pitch, u + place * u_plane + panel * k->depth * PANEL,
                             k->depth, k->m + place * k->m_plane + panel * PANEL, k->m_pitch);
        }
#pragma omp for schedule(static)
        for (ptrdiff_t t = 0; t < count; t++)
            tile_of_output(k->m + t * k->m_pitch, k->m_plane, s, k->results, start + t, y, bias);
    }
}

static ptrdiff_t plane_of_kernels(ptrdiff_t in, ptrdiff_t out) { return in * out + 16; }

/* y[n, h, w, out] = convolution of x[n, h, w, in] with w[out, 3, 3, in] + bias (or null); with `turned` the gradient of the
 * input: x is dy with the layer's out channels and y is dx with its in channels. `in` and `out` are always the layer's,
 * multiples of 16. Returns 0, or 1 if memory is short. */
int conveyor_winograd(const float *x, const float *w, const float *bias, float *y, ptrdiff_t images, ptrdiff_t height,
                      ptrdiff_t width, ptrdiff_t in, ptrdiff_t out, int turned) {
    Work k;
    int failed = begin(&k, images, height, width, turned ? out : in, turned ? in : out, omp_get_max_threads());
    ptrdiff_t u_plane = plane_of_kernels(in, out);
    float *u = floats(PLACES * u_plane);
    failed |= !u;
    if (!failed) {
#pragma omp parallel num_threads(k.threads)
        {
#pragma omp for schedule(static)
            for (ptrdiff_t panel = 0; panel < k.results / PANEL; panel++) {
                if (turned) panel_backward(w, in, out, panel, u, u_plane);
                else panel_forward(w, in, panel, u, u_plane);
            }
            all_tiles(&k, x, u, u_plane, y, bias);
        }
    }
    free(u);
    end(&k);
    return failed;
}

/* dw[out, 3, 3, in] of x[n, h, w, in] and dy[n, h, w, out]. Returns 0, or 1 if memory is short. */
int conveyor_winograd_weights(const float *x, const float *dy, float *dw, ptrdiff_t images, ptrdiff_t height,
                              ptrdiff_t width, ptrdiff_t in, ptrdiff_t out) {
    const Shape s = shape_of(images, height, width);
    ptrdiff_t v_pitch = pitch_of(in), z_pitch = pitch_of(out), panels = in / PANEL;
    int threads = threads_for(&s, in, out, omp_get_max_threads());
    /* Sums are taken over parts of `part` tiles, whatever the number of threads: it must not change a bit. */
    ptrdiff_t part = tiles_of_block(&s, v_pitch + z_pitch, 1);
    ptrdiff_t block = part * threads < s.tiles ? part * threads : s.tiles;
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
                    for (ptrdiff_t t = 0; t < count; t += part)
                        product_over_tiles(out, z + place * z_plane + t * z_pitch, z_pitch,
                                           v + place * v_plane + t * v_pitch + panel * PANEL, v_pitch,
                                           count - t < part ? count - t : part, du + place * u_plane + panel * PANEL, in,
                                           start + t > 0);
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
