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
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "winograd_transforms.h"

#define PLACES 36
#define PANEL 16 /* channels that lie together in the transformed kernels */
#define VECTORS 2 /* of results, for each row of a micro-kernel */
#if WIDTH == 16
#define ROWS 12 /* with two vectors each they fill the 32 registers */
#else
#define ROWS 6
#endif

#define BLOCK_BYTES (3 << 18) /* transformed tiles of one thread's block: they should stay in its cache */
#define PART_BYTES (3 << 19)  /* of a part over which weights' gradients are summed; another size gives other bits */
#define BLOCK_TILES 24        /* a block has a multiple of so many: whole micro-kernels of either width */

/* Vectors from and to anywhere in memory: float32, or bfloat16 with the rounding of brains.h. */
typedef float vecu __attribute__((vector_size(WIDTH * 4), aligned(4), may_alias));
typedef uint32_t bits __attribute__((vector_size(WIDTH * 4)));
typedef uint16_t brains __attribute__((vector_size(WIDTH * 2), aligned(2), may_alias));
static inline vec load(const float *from) { return *(const vecu *)from; }
static inline void store(float *to, vec value) { *(vecu *)to = value; }
static inline vec load_brain(const uint16_t *from) {
    return (vec)(__builtin_convertvector(*(const brains *)from, bits) << 16);
}
static inline void store_brain(uint16_t *to, vec value) {
    bits old = (bits)value, nearest = old + 0x7FFF + (old >> 16 & 1), is_nan = (bits)(value != value);
    *(brains *)to = __builtin_convertvector(((is_nan & (old | 0x400000)) | (~is_nan & nearest)) >> 16, brains);
}

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

/* Results are computed in strips: two vectors, or what is left. */
#define STRIP (VECTORS * WIDTH)
static inline ptrdiff_t strips_of(ptrdiff_t results) { return (results + STRIP - 1) / STRIP; }
static inline ptrdiff_t length_of(ptrdiff_t results, ptrdiff_t first) {
    return results - first < STRIP ? results - first : STRIP;
}

/* Rows a power of two apart would share a few sets of the cache. */
static inline ptrdiff_t pitch_of(ptrdiff_t channels) { return channels % 256 ? channels : channels + 16; }

typedef float v8u __attribute__((vector_size(32), aligned(4), may_alias));
typedef float v8 __attribute__((vector_size(32)));
typedef int i8 __attribute__((vector_size(32)));

#ifdef __clang__
#define SHUFFLE __builtin_shufflevector
#else /* GCC has that name from version 12 on only */
#define SHUFFLE(a, b, ...) __builtin_shuffle(a, b, (i8){__VA_ARGS__})
#endif

/* Eight rows of eight numbers, `step` apart; the columns of that matrix go to `out`. */
static inline void transpose(const float *in, ptrdiff_t step, float *out, ptrdiff_t out_step) {
#define LOW(a, b) SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define HIGH(a, b) SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
    v8 pairs[8], fours[8];
    for (int i = 0; i < 4; i++) {
        v8 one = *(const v8u *)(in + 2 * i * step), next = *(const v8u *)(in + (2 * i + 1) * step);
        pairs[2 * i] = LOW(one, next);
        pairs[2 * i + 1] = HIGH(one, next);
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

/* ---- the products ---- */

/* c[rows][vectors * WIDTH] (+)= sum over k of a[row * row_step + k * k_step] * b[k * b_step + ...]; the second vector of b
 * and c is `b_next` and `c_next` numbers behind the first. */
static inline __attribute__((always_inline)) void micro(int rows, int vectors, const float *a, ptrdiff_t row_step,
                                                        ptrdiff_t k_step, const float *b, ptrdiff_t b_step,
                                                        ptrdiff_t b_next, ptrdiff_t depth, float *c, ptrdiff_t c_step,
                                                        int add) {
    vec sums[ROWS][VECTORS];
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) sums[i][j] = (vec){0};
    for (ptrdiff_t k = 0; k < depth; k++) {
        vec line[VECTORS];
        for (int j = 0; j < vectors; j++) line[j] = load(b + k * b_step + j * b_next);
#pragma GCC unroll 12
        for (int i = 0; i < rows; i++) {
            vec value = a[i * row_step + k * k_step] - (vec){0};
            for (int j = 0; j < vectors; j++) sums[i][j] += value * line[j];
        }
    }
    for (int i = 0; i < rows; i++)
        for (int j = 0; j < vectors; j++) {
            float *to = c + i * c_step + j * WIDTH;
            store(to, add ? sums[i][j] + load(to) : sums[i][j]);
        }
}

/* The same for any number of rows, with constants for the compiler. */
static inline __attribute__((always_inline)) void strip_product(ptrdiff_t rows, int vectors, const float *a,
                                                                ptrdiff_t row_step, ptrdiff_t k_step, const float *b,
                                                                ptrdiff_t b_step, ptrdiff_t b_next, ptrdiff_t depth,
                                                                float *c, ptrdiff_t c_step, int add) {
    ptrdiff_t row = 0;
#define STEP(count)                                                                                                    \
    for (; row + count <= rows; row += count)                                                                          \
        micro(count, vectors, a + row * row_step, row_step, k_step, b, b_step, b_next, depth, c + row * c_step, c_step, add);
    STEP(ROWS)
#if ROWS > 8
    STEP(8)
#endif
    STEP(4)
    STEP(2)
    STEP(1)
#undef STEP
}

/* m[tiles][count] = v[tiles][depth] times `count` results of u, whole panels from its first on. */
static void product_of_tiles(ptrdiff_t tiles, const float *v, ptrdiff_t v_pitch, const float *u, ptrdiff_t depth, float *m,
                             ptrdiff_t m_pitch, ptrdiff_t count) {
    const ptrdiff_t next = WIDTH == PANEL ? depth * PANEL : WIDTH;
    if (count == VECTORS * WIDTH) strip_product(tiles, 2, v, v_pitch, 1, u, PANEL, next, depth, m, m_pitch, 0);
    else strip_product(tiles, 1, v, v_pitch, 1, u, PANEL, next, depth, m, m_pitch, 0);
}

/* du[rows][count] (+)= sum over the tiles of z[tile][rows] times v[tile][count]. */
static void product_over_tiles(ptrdiff_t rows, const float *z, ptrdiff_t z_pitch, const float *v, ptrdiff_t v_pitch,
                               ptrdiff_t tiles, float *du, ptrdiff_t du_pitch, ptrdiff_t count, int add) {
    if (count == VECTORS * WIDTH) strip_product(rows, 2, z, 1, z_pitch, v, v_pitch, WIDTH, tiles, du, du_pitch, add);
    else strip_product(rows, 1, z, 1, z_pitch, v, v_pitch, WIDTH, tiles, du, du_pitch, add);
}

/* Tiles whose places fit into `bytes` for each thread, of `pitch` floats each; whole micro-kernels where they can be. */
static ptrdiff_t tiles_of_block(const Shape *s, ptrdiff_t bytes, ptrdiff_t pitch, int threads) {
    ptrdiff_t fitting = bytes / (ptrdiff_t)(PLACES * sizeof(float)) * threads / pitch;
    fitting = fitting / BLOCK_TILES * BLOCK_TILES;
    if (fitting < BLOCK_TILES) fitting = BLOCK_TILES;
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
    k->block = tiles_of_block(&k->s, BLOCK_BYTES, k->v_pitch + k->m_pitch, k->threads);
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

static ptrdiff_t plane_of_kernels(ptrdiff_t in, ptrdiff_t out) { return in * out + 16; }

#include "floats.h"
#include "winograd_values.h"
#include "brains.h"
#include "winograd_values.h"
