/* The layers of a network that only answers: convolution, bias, sum and activation in one pass, channels last.
 *
 * A convolution is a product of matrices: each row is an output pixel, each column an output channel, and the sum goes
 * over the kernel's taps and the channels that a tap sees. Rows are found through a table of pointers (one for each tap
 * and pixel; beyond the border it points at zeros), so nothing is copied. A micro-kernel keeps ROWS pixels times two
 * vectors of channels in registers; what follows the sum is done before they are written.
 *
 * Weights are packed beforehand: [group][panel][tap][depth][width of the panel], panels of two vectors, the last one of a
 * group of one vector if that is enough; channels that do not exist have weights of zero.
 *
 * No value depends on its neighbours in the batch or on the number of threads.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <omp.h>

#include "vectors.h"

#define PANEL (2 * WIDTH)
#define BLOCK_BYTES (3 << 16) /* input rows of a block: they should stay in a core's second cache */
#define DEEPEST 65536         /* channels of a picture with a border */
#define JOBS 8                /* pieces of work for each thread: whoever is done takes the next */

typedef struct {
    const float *x, *weights, *bias, *residual; /* residual may be null */
    float *y;
    ptrdiff_t images, height, width, pixel;           /* pixel: floats from one input pixel to the next */
    ptrdiff_t out_height, out_width, out_pixel;       /* out_pixel: the same of the result and the residual */
    ptrdiff_t groups, depth, outputs;                 /* of each group: floats that a tap sees, channels of its result */
    ptrdiff_t kernel_height, kernel_width, stride, top, left; /* top, left: padding */
    int activation, threads;
} Convolution;

static const float zeros[DEEPEST] __attribute__((aligned(64)));

/* Write the sums of one vector, of which `left` channels exist; the bias is in them already. */
static inline __attribute__((always_inline)) void finish(const Convolution *c, vec value, ptrdiff_t at, ptrdiff_t left,
                                                         int activation) {
    if (left <= 0) return;
    if (c->residual) value += load_some(c->residual + at, left);
    store_some(c->y + at, activated(value, activation), left);
}

/* The rarer activations, on a tile that was written just now. */
static __attribute__((noinline)) void activate(const Convolution *c, ptrdiff_t place, ptrdiff_t rows, ptrdiff_t columns) {
    for (ptrdiff_t i = 0; i < rows; i++, place += c->out_pixel)
        for (ptrdiff_t j = 0; j < columns; j += WIDTH) {
            float *to = c->y + place + j;
            store_some(to, activated(load_some(to, columns - j), c->activation), columns - j);
        }
}

/* One tile: `rows` pixels times `vectors` vectors of channels. table[tap][rows] points at the pixels' input. */
static inline __attribute__((always_inline)) void micro(int rows, int vectors, const Convolution *c, ptrdiff_t taps,
                                                        const float *const *table, ptrdiff_t offset, const float *w,
                                                        ptrdiff_t row, ptrdiff_t channel, ptrdiff_t columns) {
    vec sums[ROWS][2], bias0 = load(c->bias + channel), bias1 = bias0;
    if (vectors > 1) bias1 = load(c->bias + channel + WIDTH);
    ptrdiff_t place = row * c->out_pixel + channel;
    /* What will be read and written at the end is on its way while the sums are computed. */
    for (int i = 0; i < rows; i++)
        for (int v = 0; v < vectors * WIDTH; v += 16) {
            ptrdiff_t at = place + i * c->out_pixel + v;
            if (c->residual) __builtin_prefetch(c->residual + at);
            __builtin_prefetch(c->y + at, 1);
        }
#pragma GCC unroll 12
    for (int i = 0; i < rows; i++) {
        sums[i][0] = bias0;
        sums[i][1] = bias1;
    }
    for (ptrdiff_t tap = 0; tap < taps; tap++, table += rows) {
        const float *a[ROWS];
        for (int i = 0; i < rows; i++) a[i] = table[i] + offset;
        for (ptrdiff_t k = 0; k < c->depth; k++, w += vectors * WIDTH) {
            vec w0 = load(w), w1 = w0;
            if (vectors > 1) w1 = load(w + WIDTH);
#pragma GCC unroll 12
            for (int i = 0; i < rows; i++) {
                vec value = all(a[i][k]);
                sums[i][0] += value * w0;
                if (vectors > 1) sums[i][1] += value * w1;
            }
        }
    }
    /* Unrolled loops keep the sums in their registers. */
#define FINISH(activation)                                                                                             \
    _Pragma("GCC unroll 12") for (int i = 0; i < rows; i++) {                                                           \
        finish(c, sums[i][0], place + i * c->out_pixel, columns, activation);                                          \
        if (vectors > 1) finish(c, sums[i][1], place + i * c->out_pixel + WIDTH, columns - WIDTH, activation);          \
    }
    if (c->activation == RELU) FINISH(RELU)
    else if (c->activation == SILU && !c->residual) FINISH(SILU)
    else {
        FINISH(NONE)
        if (c->activation != NONE) activate(c, place, rows, columns);
    }
#undef FINISH
}

#define KERNEL(rows, vectors)                                                                                          \
    static __attribute__((noinline)) void micro_##rows##_##vectors(                                                    \
        const Convolution *c, ptrdiff_t taps, const float *const *table, ptrdiff_t offset, const float *w,             \
        ptrdiff_t row, ptrdiff_t channel, ptrdiff_t columns) {                                                         \
        micro(rows, vectors, c, taps, table, offset, w, row, channel, columns);                                        \
    }
#define KERNELS(rows) KERNEL(rows, 1) KERNEL(rows, 2)
#define PAIR(rows) {micro_##rows##_1, micro_##rows##_2}

KERNELS(1) KERNELS(2) KERNELS(3) KERNELS(4) KERNELS(5) KERNELS(6)
#if ROWS == 12
KERNELS(7) KERNELS(8) KERNELS(9) KERNELS(10) KERNELS(11) KERNELS(12)
#endif

typedef void Kernel(const Convolution *, ptrdiff_t, const float *const *, ptrdiff_t, const float *, ptrdiff_t, ptrdiff_t,
                    ptrdiff_t);
static Kernel *const KERNEL_OF[ROWS][2] = {
    PAIR(1), PAIR(2), PAIR(3), PAIR(4), PAIR(5), PAIR(6),
#if ROWS == 12
    PAIR(7), PAIR(8), PAIR(9), PAIR(10), PAIR(11), PAIR(12),
#endif
};

static inline ptrdiff_t divided_up(ptrdiff_t n, ptrdiff_t by) { return (n + by - 1) / by; }
static inline ptrdiff_t smaller(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

/* Whether each output pixel sees just its own input pixel. */
static int is_plain(const Convolution *c) {
    return c->kernel_height * c->kernel_width == 1 && c->stride == 1 && c->top == 0 && c->left == 0
           && c->out_height == c->height && c->out_width == c->width;
}

/* Where the taps of `count` output pixels from `start` on lie: table[tile][tap][row of the tile]. */
static void find_taps(const Convolution *c, ptrdiff_t start, ptrdiff_t count, ptrdiff_t height, const float **table) {
    ptrdiff_t taps = c->kernel_height * c->kernel_width, area = c->out_width * c->out_height;
    ptrdiff_t column = start % c->out_width, line = start / c->out_width % c->out_height;
    const float *image = c->x + start / area * c->height * c->width * c->pixel;
    int plain = is_plain(c);
    for (ptrdiff_t first = 0; first < count; first += height, table += taps * height) {
        ptrdiff_t rows = smaller(height, count - first);
        for (ptrdiff_t row = 0; row < rows; row++) {
            if (plain) {
                table[row] = c->x + (start + first + row) * c->pixel;
                continue;
            }
            ptrdiff_t top = line * c->stride - c->top, left = column * c->stride - c->left;
            const float **to = table + row;
            for (ptrdiff_t i = top; i < top + c->kernel_height; i++)
                for (ptrdiff_t j = left; j < left + c->kernel_width; j++, to += rows) {
                    int inside = i >= 0 && i < c->height && j >= 0 && j < c->width;
                    *to = inside ? image + (i * c->width + j) * c->pixel : zeros;
                }
            if (++column < c->out_width) continue;
            column = 0;
            if (++line < c->out_height) continue;
            line = 0;
            image += c->height * c->width * c->pixel;
        }
    }
}

/* Rows of a block: few enough for the cache, and so that no tile of the block is nearly empty. */
static ptrdiff_t rows_of_block(const Convolution *c, ptrdiff_t rows) {
    ptrdiff_t fitting = BLOCK_BYTES / (ptrdiff_t)sizeof(float) / (c->pixel * c->stride * c->stride);
    fitting = fitting / ROWS * ROWS;
    if (fitting < 2 * ROWS) fitting = 2 * ROWS;
    if (fitting > 16 * ROWS) fitting = 16 * ROWS;
    if (fitting >= rows) return rows;
    return divided_up(divided_up(rows, divided_up(rows, fitting)), ROWS) * ROWS; /* all blocks about equal */
}

/* Threads for so many multiplications: others are not worth waking for a few. */
static int threads_for(ptrdiff_t multiplications, int threads) { return multiplications < 1 << 18 ? 1 : threads; }

/* y = activation(convolution of x + bias + residual). Returns 0; 1 if memory is short; 2 for more than DEEPEST channels. */
int conveyor_convolution(const Convolution *c) {
    ptrdiff_t rows = c->images * c->out_height * c->out_width, taps = c->kernel_height * c->kernel_width;
    ptrdiff_t vectors = divided_up(c->outputs, WIDTH), panels = divided_up(vectors, 2);
    ptrdiff_t block = rows_of_block(c, rows), blocks = divided_up(rows, block);
    int threads = threads_for(rows * taps * c->depth * c->groups * c->outputs, c->threads);
    /* Few blocks: the threads share the panels too. */
    ptrdiff_t parts = threads > 1 ? smaller(divided_up(JOBS * threads, blocks * c->groups), panels) : 1;
    ptrdiff_t table_size = taps * (block + ROWS);
    if (c->depth * c->groups > DEEPEST && !is_plain(c)) return 2;
    const float **tables = malloc((size_t)(threads * table_size) * sizeof(float *));
    if (!tables) return 1;
#pragma omp parallel num_threads(threads)
    {
        const float **table = tables + omp_get_thread_num() * table_size;
        ptrdiff_t known = -1;
#pragma omp for schedule(dynamic, 1)
        for (ptrdiff_t job = 0; job < blocks * c->groups * parts; job++) {
            ptrdiff_t start = job / (c->groups * parts) * block, count = smaller(block, rows - start);
            ptrdiff_t group = job / parts % c->groups, part = job % parts;
            ptrdiff_t tiles = divided_up(count, ROWS), height = divided_up(count, tiles);
            if (start != known) find_taps(c, start, count, height, table);
            known = start;
            for (ptrdiff_t panel = panels * part / parts; panel < panels * (part + 1) / parts; panel++) {
                ptrdiff_t channel = panel * PANEL, wide = smaller(2, vectors - panel * 2);
                const float *w = c->weights + (group * vectors * WIDTH + channel) * taps * c->depth;
                for (ptrdiff_t tile = 0; tile * height < count; tile++) {
                    ptrdiff_t in_tile = smaller(height, count - tile * height);
                    KERNEL_OF[in_tile - 1][wide - 1](c, taps, table + tile * taps * height, group * c->depth, w,
                                                     start + tile * height, group * c->outputs + channel,
                                                     smaller(wide * WIDTH, c->outputs - channel));
                }
            }
        }
    }
    free(tables);
    return 0;
}

typedef struct {
    const float *x, *weights, *bias; /* weights [kernel][kernel][channels] */
    float *y, *mean;                 /* mean[images][channels] of y over its pixels; may be null */
    ptrdiff_t images, height, width, channels, out_height, out_width, kernel, stride, top, left;
    int activation, threads;
} Depthwise;

#define COLUMNS 4 /* output pixels side by side that share what they see */
#define BANDS 8   /* parts of an image: what the threads share, and what sums are added over */

/* One vector of channels (the last one may have only `lanes` of them) of COLUMNS pixels side by side, all of whose columns
 * lie inside the picture, as lines i0 to i1 of the kernel do. Adds the results to `sums`. */
static inline __attribute__((always_inline)) void depthwise_vector(int kernel, int stride, int activation,
                                                                   const float *restrict x, ptrdiff_t line,
                                                                   ptrdiff_t pixel, const float *restrict w,
                                                                   const float *restrict bias, ptrdiff_t i0,
                                                                   ptrdiff_t i1, float *restrict y,
                                                                   float *restrict sums, ptrdiff_t lanes) {
    vec total[COLUMNS], sum = {0};
    for (int q = 0; q < COLUMNS; q++) total[q] = load(bias);
    for (ptrdiff_t i = i0; i < i1; i++) {
        vec seen[(COLUMNS - 1) * 2 + 5];
#pragma GCC unroll 11
        for (int j = 0; j < (COLUMNS - 1) * stride + kernel; j++) seen[j] = load_some(x + i * line + j * pixel, lanes);
#pragma GCC unroll 5
        for (int j = 0; j < kernel; j++) {
            vec factor = load(w + (i * kernel + j) * pixel);
#pragma GCC unroll 4
            for (int q = 0; q < COLUMNS; q++) total[q] += seen[q * stride + j] * factor;
        }
    }
#pragma GCC unroll 4
    for (int q = 0; q < COLUMNS; q++) {
        total[q] = activated(total[q], activation);
        sum += total[q];
        store_some(y + q * pixel, total[q], lanes);
    }
    store(sums, load(sums) + sum);
}

/* All channels of COLUMNS pixels: channels are innermost, so memory is read as it lies. */
static inline __attribute__((always_inline)) void depthwise_columns(int kernel, int stride, int activation,
                                                                    const Depthwise *d, const float *x, float *y,
                                                                    ptrdiff_t i0, ptrdiff_t i1, float *sums) {
    const float *w = d->weights, *bias = d->bias;
    ptrdiff_t pixel = d->channels, line = d->width * pixel, c = 0;
    for (; c + WIDTH <= pixel; c += WIDTH)
        depthwise_vector(kernel, stride, activation, x + c, line, pixel, w + c, bias + c, i0, i1, y + c, sums + c, WIDTH);
    if (c < pixel)
        depthwise_vector(kernel, stride, activation, x + c, line, pixel, w + c, bias + c, i0, i1, y + c, sums + c,
                         pixel - c);
}

/* One pixel anywhere: lines i0 to i1 and columns j0 to j1 of the kernel lie inside the picture. */
static void depthwise_pixel(const Depthwise *d, const float *x, float *y, ptrdiff_t i0, ptrdiff_t i1, ptrdiff_t j0,
                            ptrdiff_t j1, float *sums) {
    for (ptrdiff_t c = 0; c < d->channels; c += WIDTH) {
        ptrdiff_t lanes = d->channels - c;
        vec total = load(d->bias + c);
        for (ptrdiff_t i = i0; i < i1; i++)
            for (ptrdiff_t j = j0; j < j1; j++)
                total += load_some(x + (i * d->width + j) * d->channels + c, lanes)
                         * load(d->weights + (i * d->kernel + j) * d->channels + c);
        total = activated(total, d->activation);
        store(sums + c, load(sums + c) + total);
        store_some(y + c, total, lanes);
    }
}

typedef void Columns(const Depthwise *, const float *, float *, ptrdiff_t, ptrdiff_t, float *);
#define COLUMNS_OF(kernel, stride)                                                                                     \
    static void columns_##kernel##_##stride(const Depthwise *d, const float *x, float *y, ptrdiff_t i0, ptrdiff_t i1,   \
                                            float *sums) {                                                             \
        if (d->activation == SILU) depthwise_columns(kernel, stride, SILU, d, x, y, i0, i1, sums);                     \
        else depthwise_columns(kernel, stride, d->activation, d, x, y, i0, i1, sums);                                  \
    }
COLUMNS_OF(3, 1) COLUMNS_OF(3, 2) COLUMNS_OF(5, 1) COLUMNS_OF(5, 2)

/* The usual kernels have code of their own; others are computed pixel by pixel. */
static Columns *columns_of(const Depthwise *d) {
    if (d->kernel == 3) return d->stride == 1 ? columns_3_1 : d->stride == 2 ? columns_3_2 : NULL;
    if (d->kernel == 5) return d->stride == 1 ? columns_5_1 : d->stride == 2 ? columns_5_2 : NULL;
    return NULL;
}

static void depthwise_line(const Depthwise *d, ptrdiff_t image, ptrdiff_t line, float *sums) {
    ptrdiff_t top = line * d->stride - d->top, i0 = top < 0 ? -top : 0, i1 = smaller(d->kernel, d->height - top);
    const float *x = d->x + (image * d->height + top) * d->width * d->channels; /* where the kernel's first line lies */
    float *y = d->y + (image * d->out_height + line) * d->out_width * d->channels;
    Columns *columns = columns_of(d);
    for (ptrdiff_t column = 0; column < d->out_width;) {
        ptrdiff_t left = column * d->stride - d->left;
        int inside = left >= 0 && left + (COLUMNS - 1) * d->stride + d->kernel <= d->width
                     && column + COLUMNS <= d->out_width;
        if (columns && inside) {
            columns(d, x + left * d->channels, y + column * d->channels, i0, i1, sums);
            column += COLUMNS;
        } else {
            ptrdiff_t j0 = left < 0 ? -left : 0, j1 = smaller(d->kernel, d->width - left);
            depthwise_pixel(d, x + left * d->channels, y + column * d->channels, i0, i1, j0, j1, sums);
            column++;
        }
    }
}

/* y = activation(depthwise convolution of x + bias), every channel with a square kernel of its own. The arrays of weights
 * and bias are a vector longer than they need to be. Returns 0, or 1 if memory is short. */
int conveyor_depthwise_layer(const Depthwise *d) {
    ptrdiff_t bands = smaller(BANDS, d->out_height), pitch = d->channels + WIDTH;
    float *sums = calloc((size_t)(d->images * bands * pitch), sizeof(float));
    if (!sums) return 1;
#pragma omp parallel for schedule(dynamic, 1) num_threads(d->threads)
    for (ptrdiff_t job = 0; job < d->images * bands; job++) {
        ptrdiff_t band = job % bands;
        for (ptrdiff_t line = d->out_height * band / bands; line < d->out_height * (band + 1) / bands; line++)
            depthwise_line(d, job / bands, line, sums + job * pitch);
    }
    if (d->mean)
        for (ptrdiff_t image = 0; image < d->images; image++) {
            float *total = sums + image * bands * pitch, share = 1.0f / (float)(d->out_height * d->out_width);
            for (ptrdiff_t band = 1; band < bands; band++)
                for (ptrdiff_t c = 0; c < d->channels; c++) total[c] += total[band * pitch + c];
            for (ptrdiff_t c = 0; c < d->channels; c++) d->mean[image * d->channels + c] = total[c] * share;
        }
    free(sums);
    return 0;
}

/* y[image][channel] = the mean of x[image][pixel][channel] over the pixels, which lie `pitch` floats apart. */
void conveyor_mean(const float *x, float *y, ptrdiff_t images, ptrdiff_t pixels, ptrdiff_t channels, ptrdiff_t pitch,
                   int threads) {
    ptrdiff_t tiles = divided_up(channels, WIDTH);
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t job = 0; job < images * tiles; job++) {
        ptrdiff_t first = job % tiles * WIDTH, lanes = smaller(WIDTH, channels - first);
        const float *from = x + job / tiles * pixels * pitch + first;
        vec sum = {0};
        for (ptrdiff_t p = 0; p < pixels; p++, from += pitch) sum += load_some(from, lanes);
        store_some(y + job / tiles * channels + first, sum * (1.0f / (float)pixels), lanes);
    }
}

/* y = the largest of each window of x that lies inside the picture. */
void conveyor_max_pool(const float *x, float *y, ptrdiff_t images, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels,
                       ptrdiff_t out_height, ptrdiff_t out_width, ptrdiff_t kernel, ptrdiff_t stride, ptrdiff_t padding,
                       int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t line = 0; line < images * out_height; line++) {
        const float *image = x + line / out_height * height * width * channels;
        ptrdiff_t top = line % out_height * stride - padding;
        float *to = y + line * out_width * channels;
        for (ptrdiff_t column = 0; column < out_width; column++, to += channels) {
            ptrdiff_t left = column * stride - padding;
            int first = 1;
            for (ptrdiff_t i = top < 0 ? 0 : top; i < smaller(top + kernel, height); i++)
                for (ptrdiff_t j = left < 0 ? 0 : left; j < smaller(left + kernel, width); j++, first = 0) {
                    const float *from = image + (i * width + j) * channels;
                    if (first) memcpy(to, from, channels * sizeof(float));
                    else
                        for (ptrdiff_t c = 0; c < channels; c++)
                            to[c] = from[c] > to[c] || from[c] != from[c] ? from[c] : to[c];
                }
        }
    }
}

/* y[n][top + h][left + w][c] = table[c][x[n][h][w][c]] in a picture whose border of zeros is there already; channels
 * beyond those of x stay zero too. */
void conveyor_normalise(const uint8_t *x, const float *table, float *y, ptrdiff_t images, ptrdiff_t height,
                        ptrdiff_t width, ptrdiff_t channels, ptrdiff_t out_height, ptrdiff_t out_width,
                        ptrdiff_t out_channels, ptrdiff_t top, ptrdiff_t left, int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t line = 0; line < images * height; line++) {
        const uint8_t *from = x + line * width * channels;
        float *to = y + ((line / height * out_height + top + line % height) * out_width + left) * out_channels;
        for (ptrdiff_t w = 0; w < width; w++, from += channels, to += out_channels)
            for (ptrdiff_t c = 0; c < channels; c++) to[c] = table[c * 256 + from[c]];
    }
}

/* Packed weights of a 1x1 convolution times a factor for each input channel: [panel][depth][width of the panel]. */
void conveyor_scale_weights(const float *weights, const float *factors, float *scaled, ptrdiff_t depth,
                            ptrdiff_t outputs) {
    for (ptrdiff_t vectors = divided_up(outputs, WIDTH); vectors > 0; vectors -= 2) {
        ptrdiff_t wide = smaller(2, vectors) * WIDTH;
        for (ptrdiff_t k = 0; k < depth; k++)
            for (ptrdiff_t j = 0; j < wide; j += WIDTH) store(scaled + k * wide + j, load(weights + k * wide + j) * factors[k]);
        weights += depth * wide;
        scaled += depth * wide;
    }
}

/* y[image][pixel][channel] = x times a factor for each image and channel. */
void conveyor_scale(const float *x, const float *factors, float *y, ptrdiff_t images, ptrdiff_t pixels, ptrdiff_t channels,
                    int threads) {
#pragma omp parallel for schedule(static) num_threads(threads)
    for (ptrdiff_t row = 0; row < images * pixels; row++)
        for (ptrdiff_t c = 0; c < channels; c++)
            y[row * channels + c] = x[row * channels + c] * factors[row / pixels * channels + c];
}

/* Floats of a vector: what the packing of weights depends on. */
int conveyor_width(void) { return WIDTH; }
