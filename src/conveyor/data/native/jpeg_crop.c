/* Decode the part of a JPEG that a crop needs and resize it to the network's input, in one pass over the rows.
 *
 * libjpeg-turbo does the decoding: columns outside the crop are neither transformed nor converted to RGB
 * (jpeg_crop_scanline), rows above it are only passed over (jpeg_skip_scanlines), rows below it are never read. The
 * library is the one that is already on the machine (Pillow brings its own), opened by name, so neither headers nor a
 * second copy of it are needed; the few fields of its binary interface (6.2 and 8.0 alike) that are used stand in `struct
 * reader`, and the library itself refuses a version or size that is not its own.
 *
 * The resize is bilinear with antialiasing: each output value is the weighted mean of the inputs within `ratio` (at least
 * 1) of its centre, weights falling linearly. Rows are combined first into 16-bit values with 7 bits after the point,
 * then columns; both passes have weights of 15 bits. The rows are used while they are still in the cache. resize.py does the
 * same arithmetic in numpy, to the bit; for that the compiler must not contract the plan's products and sums.
 */

#include <dlfcn.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#define READER_BYTES 1024
#define GREY 1
#define RGB 2
#define ACCURATE_TRANSFORM 0
#define ROWS_AT_ONCE 16
#define EDGE 32
#define MARGIN 4

struct errors {
    void (*leave)(void *);
    void (*message)(void *, int);
    void (*output)(void *);
    void (*format)(void *, char *);
    void (*reset)(void *);
    char rest[256];
};

/* The fields up to the last one that is used; the rest is the library's own. */
struct reader {
    struct errors *errors;
    void *memory, *progress, *client;
    int decompressing, state;
    void *source;
    unsigned int image_width, image_height;
    int components, stored_colours, colours;
    unsigned int scale_numerator, scale_denominator;
    double gamma;
    int buffered, raw, transform, smooth_upsampling, smooth_blocks, palette;
    int dither, two_pass, palette_size, palette_one, palette_given, palette_two;
    unsigned int width, height;
    int out_components, bytes_per_pixel, rows_at_once, palette_used;
    void *palette_values;
    unsigned int row;
};

union space {
    struct reader reader;
    char bytes[READER_BYTES];
};

struct handle {
    union space space;
    struct errors errors;
    jmp_buf escape;
    int ready; /* whether `create` came back, so that there is something to destroy */
    uint8_t *rows;
    size_t rows_size;
    int16_t *line;
    size_t line_size;
    int32_t *plan;
    size_t plan_size;
};

static struct {
    struct errors *(*standard_errors)(struct errors *);
    void (*create)(struct reader *, int, size_t);
    void (*memory_source)(struct reader *, const unsigned char *, unsigned long);
    int (*read_header)(struct reader *, int);
    int (*start)(struct reader *);
    void (*crop)(struct reader *, unsigned int *, unsigned int *);
    unsigned int (*skip)(struct reader *, unsigned int);
    unsigned int (*read)(struct reader *, uint8_t **, unsigned int);
    void (*abort)(struct reader *);
    void (*destroy)(struct reader *);
    int interface;
    size_t reader_bytes;
} library;

static int find(void *opened, const char *name, void *into)
{
    void *symbol = dlsym(opened, name);
    memcpy(into, &symbol, sizeof symbol);
    return symbol != NULL;
}

/* 1 when the library at `path` has everything; it stays open. `interface` is its version (62 or 80) and `reader_bytes`
 * the size of a reader in it, which conveyor_jpeg_open has it check. */
int conveyor_jpeg_library(const char *path, int interface, int reader_bytes)
{
    library.interface = interface;
    library.reader_bytes = (size_t)reader_bytes;
    if (library.reader_bytes > READER_BYTES)
        return 0;
    void *opened = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!opened)
        return 0;
    return find(opened, "jpeg_std_error", &library.standard_errors) &&
           find(opened, "jpeg_CreateDecompress", &library.create) &&
           find(opened, "jpeg_mem_src", &library.memory_source) &&
           find(opened, "jpeg_read_header", &library.read_header) &&
           find(opened, "jpeg_start_decompress", &library.start) &&
           find(opened, "jpeg_crop_scanline", &library.crop) &&
           find(opened, "jpeg_skip_scanlines", &library.skip) &&
           find(opened, "jpeg_read_scanlines", &library.read) &&
           find(opened, "jpeg_abort_decompress", &library.abort) &&
           find(opened, "jpeg_destroy_decompress", &library.destroy);
}

static void leave(void *reader)
{
    struct handle *handle = reader; /* the reader is the handle's first member */
    longjmp(handle->escape, 1);
}

static void no_message(void *reader, int level)
{
    (void)reader;
    (void)level;
}

void conveyor_jpeg_close(struct handle *handle)
{
    if (!handle)
        return;
    if (handle->ready && !setjmp(handle->escape))
        library.destroy(&handle->space.reader);
    free(handle->rows);
    free(handle->line);
    free(handle->plan);
    free(handle);
}

/* A decoder with its memory, for one thread; NULL when the library has another binary interface. */
struct handle *conveyor_jpeg_open(void)
{
    struct handle *handle = calloc(1, sizeof *handle);
    if (!handle)
        return NULL;
    handle->space.reader.errors = library.standard_errors(&handle->errors);
    handle->errors.leave = leave;
    handle->errors.message = no_message;
    if (setjmp(handle->escape)) {
        conveyor_jpeg_close(handle);
        return NULL;
    }
    library.create(&handle->space.reader, library.interface, library.reader_bytes);
    handle->ready = 1;
    return handle;
}

static void *grown(void *memory, size_t *have, size_t need)
{
    if (*have >= need)
        return memory;
    free(memory);
    *have = need + need / 2;
    return malloc(*have);
}

static int most_taps(int inputs, int outputs)
{
    double ratio = (double)inputs / outputs;
    int taps = (int)(2 * (ratio > 1 ? ratio : 1)) + 2;
    return (taps + 1) & ~1;
}

/* For each of `outputs`: first input, number of inputs, then `taps` weights (int16, 2 to a word) that add up to 2^15.
 * Returns the largest number of inputs. */
static int plan_axis(int32_t *plan, int inputs, int outputs, int taps)
{
    int most = 1;
    double ratio = (double)inputs / outputs, reach = ratio > 1 ? ratio : 1;
    int stride = 2 + taps / 2;
    for (int i = 0; i < outputs; i++) {
        int32_t *entry = plan + (size_t)i * stride;
        int16_t *weights = (int16_t *)(entry + 2);
        double centre = (i + 0.5) * ratio, total = 0;
        int first = (int)(centre - reach + 0.5), end = (int)(centre + reach + 0.5);
        if (first < 0)
            first = 0;
        if (end > inputs)
            end = inputs;
        if (end - first > taps)
            end = first + taps;
        for (int k = first; k < end; k++) {
            double distance = (k + 0.5 - centre) / reach;
            total += 1 - (distance < 0 ? -distance : distance);
        }
        int sum = 0, largest = 0;
        memset(weights, 0, (size_t)taps * sizeof *weights);
        for (int k = first; k < end; k++) {
            double distance = (k + 0.5 - centre) / reach;
            int weight = (int)((1 - (distance < 0 ? -distance : distance)) / total * 32768 + 0.5);
            weights[k - first] = (int16_t)(weight > 32767 ? 32767 : weight);
            sum += weights[k - first];
            if (weights[k - first] > weights[largest])
                largest = k - first;
        }
        int corrected = weights[largest] + 32768 - sum;
        weights[largest] = (int16_t)(corrected > 32767 ? 32767 : corrected);
        entry[0] = first;
        entry[1] = end - first;
        if (entry[1] > most)
            most = entry[1];
    }
    return most;
}

static inline int16_t scaled(uint8_t value, int16_t weight)
{
    return (int16_t)(((int32_t)value * weight + 128) >> 8);
}

/* Hundreds of rounded products of white may add up to one more than 16 bits hold. */
static inline int16_t saturated(int32_t sum)
{
    return (int16_t)(sum > 32767 ? 32767 : sum);
}

/* line = sum of rows * weights, 7 bits after the point. Each product is rounded, as the vector instruction does it. */
static void combine_rows(int16_t *restrict line, const uint8_t *row, size_t stride, const int16_t *weights, int taps, int length)
{
#if defined(__AVX2__)
    for (int x = 0; length >= 16 && x < length; x += 16) {
        if (x + 16 > length)
            x = length - 16; /* some values twice, none beyond the row */
        __m256i sum = _mm256_setzero_si256();
        const uint8_t *from = row + x;
        for (int k = 0; k < taps; k++, from += stride) {
            __m256i values = _mm256_cvtepu8_epi16(_mm_loadu_si128((const __m128i *)from));
            sum = _mm256_adds_epi16(sum, _mm256_mulhrs_epi16(_mm256_slli_epi16(values, 7), _mm256_set1_epi16(weights[k])));
        }
        _mm256_storeu_si256((__m256i *)(line + x), sum);
    }
    if (length >= 16)
        return;
#endif
    for (int x = 0; x < length; x++)
        line[x] = scaled(row[x], weights[0]);
    for (int k = 1; k < taps; k++) {
        const uint8_t *more = row + (size_t)k * stride;
        for (int x = 0; x < length; x++)
            line[x] = saturated(line[x] + scaled(more[x], weights[k]));
    }
}

static inline uint8_t rounded(int32_t sum)
{
    int32_t value = (sum + (1 << 21)) >> 22;
    return (uint8_t)(value > 255 ? 255 : value < 0 ? 0 : value);
}

static void combine_columns_plain(uint8_t *out, const int16_t *line, const int32_t *plan, int stride, int outputs, int channels)
{
    for (int i = 0; i < outputs; i++) {
        const int32_t *entry = plan + (size_t)i * stride;
        const int16_t *weights = (const int16_t *)(entry + 2), *first = line + (size_t)entry[0] * channels;
        for (int c = 0; c < channels; c++) {
            int32_t sum = 0;
            for (int k = 0; k < entry[1]; k++)
                sum += (int32_t)first[k * channels + c] * weights[k];
            *out++ = rounded(sum);
        }
    }
}

#if defined(__AVX2__)
/* Two pixels of three 16-bit values become pairs (r0 r1 g0 g1 b0 b1), which one instruction multiplies and adds. The
 * number of pairs is the same for all outputs (weights beyond an output's own inputs are zero), so that no branch depends
 * on the position. */
static inline __attribute__((always_inline)) void combine_columns_pairs(uint8_t *out, const int16_t *line, const int32_t *plan,
                                                                        int stride, int outputs, int pairs)
{
    const __m128i order = _mm_setr_epi8(0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11, -1, -1, -1, -1);
    const __m128i half = _mm_set1_epi32(1 << 21);
    __m128i sum = half;
    for (int i = 0; i < outputs; i++) {
        const int32_t *entry = plan + (size_t)i * stride;
        const int16_t *from = line + (size_t)entry[0] * 3;
        sum = half;
        for (int k = 0; k < pairs; k++) {
            __m128i two = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(from + 6 * k)), order);
            sum = _mm_add_epi32(sum, _mm_madd_epi16(two, _mm_set1_epi32(entry[2 + k])));
        }
        sum = _mm_srai_epi32(sum, 22);
        sum = _mm_packs_epi32(sum, sum);
        sum = _mm_packus_epi16(sum, sum);
        if (i + 1 == outputs)
            break; /* the last pixel of the batch has no fourth byte to write over */
        const int32_t pixel = _mm_cvtsi128_si32(sum);
        memcpy(out, &pixel, 4);
        out += 3;
    }
    const int32_t pixel = _mm_cvtsi128_si32(sum);
    memcpy(out, &pixel, 3);
}

static void combine_columns_rgb(uint8_t *out, const int16_t *line, const int32_t *plan, int stride, int outputs, int pairs)
{
    switch (pairs) {
    case 1:
        combine_columns_pairs(out, line, plan, stride, outputs, 1);
        break;
    case 2:
        combine_columns_pairs(out, line, plan, stride, outputs, 2);
        break;
    case 3:
        combine_columns_pairs(out, line, plan, stride, outputs, 3);
        break;
    default:
        combine_columns_pairs(out, line, plan, stride, outputs, pairs);
    }
}
#endif

/* One row of the result from `line`. */
static void combine_columns(uint8_t *out, const int16_t *line, const int32_t *plan, int stride, int outputs, int channels, int pairs)
{
#if defined(__AVX2__)
    if (channels == 3) {
        combine_columns_rgb(out, line, plan, stride, outputs, pairs);
        return;
    }
#endif
    (void)pairs;
    combine_columns_plain(out, line, plan, stride, outputs, channels);
}

/* Pixels [height, width, channels], rows `row_bytes` apart, resized to size x size x channels bytes at `out`, with the
 * arithmetic of conveyor_jpeg_crop. 0: done; 3: no memory. */
int conveyor_resize(const uint8_t *pixels, size_t row_bytes, int height, int width, int channels, int size, uint8_t *out)
{
    int taps_down = most_taps(height, size), taps_across = most_taps(width, size);
    int stride_down = 2 + taps_down / 2, stride_across = 2 + taps_across / 2;
    size_t values = (size_t)width * (size_t)channels;
    int16_t *line = calloc(values + (size_t)(EDGE + taps_across * channels), sizeof *line);
    int32_t *down = malloc((size_t)size * (size_t)(stride_down + stride_across) * sizeof *down);
    int status = line && down ? 0 : 3;
    if (!status) {
        int32_t *across = down + (size_t)size * (size_t)stride_down;
        plan_axis(down, height, size, taps_down);
        const int pairs = (plan_axis(across, width, size, taps_across) + 1) / 2;
        for (int i = 0; i < size; i++, out += (size_t)size * (size_t)channels) {
            const int32_t *entry = down + (size_t)i * (size_t)stride_down;
            combine_rows(line, pixels + (size_t)entry[0] * row_bytes, row_bytes, (const int16_t *)(entry + 2), entry[1], (int)values);
            combine_columns(out, line, across, stride_across, size, channels, pairs);
        }
    }
    free(line);
    free(down);
    return status;
}

/* The box (left, top, right, bottom in pixels of the stored image) at 1/scale of its size, resized to size x size x
 * channels bytes at `out`. 0: done; 1: libjpeg gave up; 2: the picture is not as the caller says; 3: no memory. */
int conveyor_jpeg_crop(struct handle *handle, const uint8_t *data, size_t length, int left, int top, int right, int bottom,
                       int scale, int channels, int size, uint8_t *out)
{
    struct reader *reader = &handle->space.reader;
    if (setjmp(handle->escape)) {
        if (!setjmp(handle->escape))
            library.abort(reader);
        return 1;
    }
    library.memory_source(reader, data, (unsigned long)length);
    library.read_header(reader, 1);
    if (left < 0 || top < 0 || right <= left || bottom <= top || right > (int)reader->image_width ||
        bottom > (int)reader->image_height) {
        library.abort(reader);
        return 2;
    }
    reader->colours = channels == 1 ? GREY : RGB;
    reader->scale_numerator = 1;
    reader->scale_denominator = (unsigned int)scale;
    reader->transform = ACCURATE_TRANSFORM;
    reader->smooth_upsampling = 1;
    library.start(reader);

    left /= scale;
    top /= scale;
    right = (right + scale - 1) / scale;
    bottom = (bottom + scale - 1) / scale;
    int width = right - left, height = bottom - top;
    /* Smooth upsampling looks at the neighbours of a pixel, so that the borders of what is decoded lie outside the crop. */
    int from = left > MARGIN ? left - MARGIN : 0, to = right + MARGIN;
    if (to > (int)reader->width)
        to = (int)reader->width;
    unsigned int start = (unsigned int)from, columns = (unsigned int)(to - from);
    if (columns < reader->width)
        library.crop(reader, &start, &columns);
    else
        start = 0;
    int taps_down = most_taps(height, size), taps_across = most_taps(width, size);
    int stride_down = 2 + taps_down / 2, stride_across = 2 + taps_across / 2;
    size_t row_bytes = (size_t)reader->width * (size_t)channels;
    size_t values = (size_t)width * (size_t)channels;
    int edge = EDGE + taps_across * channels; /* what is read, with weight zero, beyond the last pixel */
    handle->rows = grown(handle->rows, &handle->rows_size, row_bytes * (size_t)(height + ROWS_AT_ONCE) + EDGE);
    handle->line = grown(handle->line, &handle->line_size, (values + (size_t)edge) * sizeof *handle->line);
    handle->plan = grown(handle->plan, &handle->plan_size, (size_t)size * (size_t)(stride_down + stride_across) * sizeof *handle->plan);
    if (!handle->rows || !handle->line || !handle->plan) {
        handle->rows_size = handle->line_size = handle->plan_size = 0;
        library.abort(reader);
        return 3;
    }
    if (reader->bytes_per_pixel != channels || (int)start > left || (int)(start + reader->width) < right) {
        library.abort(reader);
        return 2;
    }
    int32_t *down = handle->plan, *across = handle->plan + (size_t)size * (size_t)stride_down;
    plan_axis(down, height, size, taps_down);
    const int pairs = (plan_axis(across, width, size, taps_across) + 1) / 2;
    memset(handle->line + values, 0, (size_t)edge * sizeof *handle->line);

    if (top > 0)
        library.skip(reader, (unsigned int)top);
    int have = 0;
    const size_t offset = (size_t)(left - (int)start) * (size_t)channels;
    for (int i = 0; i < size; i++) {
        const int32_t *entry = down + (size_t)i * (size_t)stride_down;
        while (have < entry[0] + entry[1]) {
            uint8_t *rows[ROWS_AT_ONCE];
            int wanted = height - have < ROWS_AT_ONCE ? height - have : ROWS_AT_ONCE;
            for (int k = 0; k < wanted; k++)
                rows[k] = handle->rows + (size_t)(have + k) * row_bytes;
            unsigned int got = library.read(reader, rows, (unsigned int)wanted);
            if (!got) {
                library.abort(reader);
                return 1;
            }
            have += (int)got;
        }
        combine_rows(handle->line, handle->rows + (size_t)entry[0] * row_bytes + offset, row_bytes,
                     (const int16_t *)(entry + 2), entry[1], (int)values);
        combine_columns(out, handle->line, across, stride_across, size, channels, pairs);
        out += (size_t)size * (size_t)channels;
    }
    library.abort(reader);
    return 0;
}
