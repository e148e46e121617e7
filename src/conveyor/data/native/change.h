/* Operations of augmentation on an 8-bit image of one or three channels: see transform/operations.py, which does the same by
 * PyTorch. Whole numbers, and float32 and float64 operations rounded one after the other, so the bits are equal.
 *
 * An image is [height][width][channels], and [channels][height][width] for what looks at more than single levels: colours
 * of neighbouring pixels then lie side by side, as wide instructions take them. Loops go over whole planes: a row of 32
 * pixels is too short for them.
 */

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { IDENTITY, AUTOCONTRAST, EQUALIZE, SOLARIZE, POSTERIZE, COLOR, CONTRAST, BRIGHTNESS, SHARPNESS, NEAREST, BILINEAR, HUE };

#define ANYHOW (1 << SOLARIZE | 1 << POSTERIZE | 1 << BRIGHTNESS) /* steps that look at single levels */
#define IN_PIXELS (1 << NEAREST | 1 << BILINEAR | 1 << SHARPNESS) /* all others take planes */
#define VALUES 8 /* of a step in the plan: a code, six values, the level outside the image */
#define EDGE 2   /* pixels of that level around an image of whole words */

typedef uint8_t sixteen __attribute__((vector_size(16)));
#ifdef __clang__
#define SHUFFLE(one, other, ...) __builtin_shufflevector(one, other, __VA_ARGS__)
#else /* GCC has that name from version 12 on only */
#define SHUFFLE(one, other, ...) __builtin_shuffle(one, other, (sixteen){__VA_ARGS__})
#endif
#if defined(__SSSE3__) || defined(__ARM_NEON)
#define SHUFFLES 1 /* in one instruction; elsewhere byte after byte, which plain loops do faster */
#else
#define SHUFFLES 0
#endif
#ifdef __AVX512VBMI__ /* bytes of whole registers in any order, in one instruction */
#include <immintrin.h>
#define LOOKS_UP 1
#else
#define LOOKS_UP 0
#endif

typedef struct {
    ptrdiff_t height, width, channels;
} shape;

static inline int32_t blend(int32_t plain, int32_t value, float factor)
{
    /* Cut, then clamped: as the other way round. A difference of levels is a whole number, so a million is as good as any more. */
    const int32_t found = (int32_t)((float)(value - plain) * fminf(factor, 1e6f) + (float)plain);
    return found < 0 ? 0 : found > 255 ? 255 : found;
}

static inline int32_t luma(int32_t red, int32_t green, int32_t blue)
{
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16;
}

static void look_up(uint8_t *restrict image, ptrdiff_t size, const uint8_t *restrict table)
{
    ptrdiff_t i = 0;
#ifdef __AVX512VBMI__ /* an index has 7 bits, so each half of the table is asked, and the eighth bit chooses */
    const __m512i a = _mm512_loadu_si512(table), b = _mm512_loadu_si512(table + 64);
    const __m512i c = _mm512_loadu_si512(table + 128), d = _mm512_loadu_si512(table + 192);
    for (; i + 64 <= size; i += 64) {
        const __m512i level = _mm512_loadu_si512(image + i), dark = _mm512_permutex2var_epi8(a, level, b);
        const __m512i bright = _mm512_permutex2var_epi8(c, level, d);
        _mm512_storeu_si512(image + i, _mm512_mask_mov_epi8(dark, _mm512_movepi8_mask(level), bright));
    }
#endif
    for (; i < size; i++)
        image[i] = table[image[i]];
}

/* What a step that looks at single levels has to change: all there are, to be looked up later, or, where that takes longer, the image's. */
static inline uint8_t *levels_of(uint8_t *image, uint8_t *table)
{
    for (int level = 0; level < 256; level++)
        table[level] = (uint8_t)level;
    return LOOKS_UP ? table : image;
}

/* `plain` is what CONTRAST blends with. */
static void change_levels(uint8_t *image, ptrdiff_t size, int code, double value, int32_t plain)
{
    uint8_t table[256], *const levels = levels_of(image, table);
    const ptrdiff_t count = LOOKS_UP ? 256 : size;
    if (code == SOLARIZE && value <= 255) {
        const uint8_t least = (uint8_t)(value > 0 ? ceil(value) : 0);
        for (ptrdiff_t i = 0; i < count; i++)
            levels[i] = levels[i] >= least ? (uint8_t)~levels[i] : levels[i];
    } else if (code == POSTERIZE) {
        const uint8_t kept = (uint8_t)(255u << (int)value);
        for (ptrdiff_t i = 0; i < count; i++)
            levels[i] &= kept;
    } else if (code != SOLARIZE)
        for (ptrdiff_t i = 0; i < count; i++)
            levels[i] = (uint8_t)blend(plain, levels[i], (float)value);
    if (LOOKS_UP)
        look_up(image, size, table);
}

/* Of three planes, or of one, which is grey already: the shares of the colours add up to 1. */
static int32_t mean_grey(const uint8_t *red, const uint8_t *green, const uint8_t *blue, ptrdiff_t pixels)
{
    int64_t sum = 0;
    for (ptrdiff_t done = 0; done < pixels;) {
        int32_t part = 0;
        for (const ptrdiff_t end = pixels - done < 4096 ? pixels : done + 4096; done < end; done++)
            part += luma(red[done], green[done], blue[done]);
        sum += part;
    }
    return (int32_t)floor((double)sum / (double)pixels + 0.5);
}

static void color(uint8_t *restrict red, uint8_t *restrict green, uint8_t *restrict blue, ptrdiff_t pixels, float factor)
{
    for (ptrdiff_t i = 0; i < pixels; i++) {
        const int32_t plain = luma(red[i], green[i], blue[i]);
        red[i] = (uint8_t)blend(plain, red[i], factor);
        green[i] = (uint8_t)blend(plain, green[i], factor);
        blue[i] = (uint8_t)blend(plain, blue[i], factor);
    }
}

static inline uint8_t of_hue(float n, float hue, float value, float spread)
{
    float k = hue + n;
    k = k - 6 * floorf(k * (float)(1.0 / 6));
    const float part = fminf(fmaxf(fminf(4 - k, k), 0), 1);
    return (uint8_t)(int32_t)(value - part * spread + 0.5f);
}

static void turn_hue(uint8_t *restrict reds, uint8_t *restrict greens, uint8_t *restrict blues, ptrdiff_t pixels, float share)
{
    const float turned = 6 * share;
    for (ptrdiff_t i = 0; i < pixels; i++) {
        const float red = reds[i], green = greens[i], blue = blues[i];
        const float value = fmaxf(fmaxf(red, green), blue), spread = value - fminf(fminf(red, green), blue);
        const float top = value == red ? green - blue : value == green ? blue - red : red - green;
        const float sector = value == red ? 0.0f : value == green ? 2.0f : 4.0f;
        const float hue = sector + top / fmaxf(spread, 1) + turned;
        reds[i] = of_hue(5, hue, value, spread);
        greens[i] = of_hue(3, hue, value, spread);
        blues[i] = of_hue(1, hue, value, spread);
    }
}

static void autocontrast(uint8_t *plane, ptrdiff_t pixels)
{
    uint8_t low = 255, high = 0, table[256], *const levels = levels_of(plane, table);
    for (ptrdiff_t i = 0; i < pixels; i++) {
        low = plane[i] < low ? plane[i] : low;
        high = plane[i] > high ? plane[i] : high;
    }
    if (high <= low)
        return;
    const double scale = 255.0 / (high - low), offset = -(double)low * scale;
    for (ptrdiff_t i = 0; i < (LOOKS_UP ? 256 : pixels); i++)
        levels[i] = (uint8_t)(int32_t)fmin(fmax(levels[i] * scale + offset, 0), 255);
    if (LOOKS_UP)
        look_up(plane, pixels, table);
}

/* Channels take turns, so that equal neighbours, which are frequent, wait less for the same counter; one channel counts three times. */
static void equalize(uint8_t *image, ptrdiff_t pixels, ptrdiff_t channels)
{
    const uint8_t *const green = image + (channels - 1) / 2 * pixels, *const blue = image + (channels - 1) * pixels;
    uint32_t counts[3][256] = {{0}};
    for (ptrdiff_t i = 0; i < pixels; i++) {
        counts[0][image[i]]++;
        counts[1][green[i]]++;
        counts[2][blue[i]]++;
    }
    for (ptrdiff_t c = 0; c < channels; c++) {
        int high = 255;
        while (!counts[c][high])
            high--;
        const int32_t step = (int32_t)(pixels - counts[c][high]) / 255;
        if (!step)
            continue;
        int32_t darker[256], sum = step / 2;
        for (int level = 0; level < 256; level++) {
            darker[level] = sum;
            sum += (int32_t)counts[c][level];
        }
        uint8_t table[256];
        const double each = 1.0 / step;
        for (int level = 0; level < 256; level++) /* darker / step: with the half, it is never near a whole number */
            table[level] = (uint8_t)(int32_t)fmin((darker[level] + 0.5) * each, 255);
        look_up(image + c * pixels, pixels, table);
    }
}

/* Of pixels or one plane; `sums` has room for `height` * `length`, a row's values. What is found at the left and right border comes from
 * other rows: it is put back. */
static void sharpness(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t height, ptrdiff_t length, ptrdiff_t channels,
                      float factor, uint16_t *restrict sums)
{
    const ptrdiff_t first = length, end = (height - 1) * length;
    memcpy(to, from, (size_t)(height * length));
    if (height < 3 || length < 3 * channels)
        return;
    for (ptrdiff_t i = first; i < end; i++)
        sums[i] = (uint16_t)(from[i - length] + from[i] + from[i + length]);
    for (ptrdiff_t i = first + channels; i < end - channels; i++) { /* (2 n + 13) / 26 of whole numbers is (n + 6) / 13 */
        const uint16_t sum = (uint16_t)(sums[i - channels] + sums[i] + sums[i + channels] + 4 * from[i] + 6);
        to[i] = (uint8_t)blend((uint16_t)((uint32_t)sum * 5042 >> 16), from[i], factor); /* sum / 13 below 6,500 */
    }
    for (ptrdiff_t i = first; i < end; i += length)
        for (ptrdiff_t c = 0; c < channels; c++) {
            to[i + c] = from[i + c];
            to[i + length - 1 - c] = from[i + length - 1 - c];
        }
}

/* Pixels as words, with EDGE pixels of level `fill` on each side. Up to 16 bytes behind the image are read. */
static void widen(uint32_t *restrict to, const uint8_t *restrict from, shape of, uint32_t fill)
{
    const ptrdiff_t wide = of.width + 2 * EDGE;
    for (ptrdiff_t i = 0; i < wide * (of.height + 2 * EDGE); i++)
        to[i] = fill * 0x01010101u;
    for (ptrdiff_t y = 0; y < of.height; y++, from += of.width * of.channels) {
        uint32_t *restrict row = to + (y + EDGE) * wide + EDGE;
        ptrdiff_t x = 0;
#ifdef __AVX512VBMI__
        uint8_t order[64];
        for (int i = 0; i < 64; i++)
            order[i] = (uint8_t)(i / 4 * 3 + i % 4);
        for (; of.channels == 3 && x + 16 <= of.width; x += 16)
            _mm512_storeu_si512(row + x, _mm512_maskz_permutexvar_epi8(0x7777777777777777, _mm512_loadu_si512(order),
                                                                       _mm512_loadu_si512(from + 3 * x)));
#endif
        for (; SHUFFLES && of.channels == 3 && x + 4 <= of.width; x += 4) {
            sixteen four;
            memcpy(&four, from + 3 * x, 16);
            four = SHUFFLE(four, (sixteen){0}, 0, 1, 2, 16, 3, 4, 5, 16, 6, 7, 8, 16, 9, 10, 11, 16);
            memcpy(row + x, &four, 16);
        }
        for (; x < of.width; x++)
            row[x] = of.channels == 1 ? from[x] : from[3 * x] | (uint32_t)from[3 * x + 1] << 8 | (uint32_t)from[3 * x + 2] << 16;
    }
}

/* The reverse, without an edge. */
static void narrow(uint8_t *restrict to, const uint32_t *restrict from, ptrdiff_t pixels, ptrdiff_t channels)
{
    ptrdiff_t i = 0;
#ifdef __AVX512VBMI__
    uint8_t order[64];
    for (int k = 0; k < 64; k++)
        order[k] = (uint8_t)(k / 3 * 4 + k % 3);
    for (; channels == 3 && i + 22 <= pixels; i += 16) /* the last 16 of 64 bytes are written again */
        _mm512_storeu_si512(to + 3 * i, _mm512_permutexvar_epi8(_mm512_loadu_si512(order), _mm512_loadu_si512(from + i)));
#endif
    for (; SHUFFLES && channels == 3 && i + 6 <= pixels; i += 4) { /* the last 4 of 16 bytes are written again */
        sixteen four;
        memcpy(&four, from + i, 16);
        four = SHUFFLE(four, four, 0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, 0, 0, 0, 0);
        memcpy(to + 3 * i, &four, 16);
    }
    for (; i < pixels; i++)
        for (ptrdiff_t c = 0; c < channels; c++)
            to[channels * i + c] = (uint8_t)(from[i] >> (8 * c));
}

/* Two levels in each of two words, in the bytes 0 and 2: a + (b - a) part / 256, rounded. */
static inline uint32_t between(uint32_t a, uint32_t b, uint32_t part)
{
    return ((a << 8) + (b - a) * part + 0x00800080u) >> 8 & 0x00ff00ffu;
}

static inline int32_t within(int32_t value, int32_t end)
{
    value = value < -EDGE ? -EDGE : value;
    return value > end ? end : value;
}

/* Of each pixel of a line where it comes from in the image of words; what is far outside stays within the edge. */
static void places(int32_t *restrict to, int32_t width, int32_t height, int32_t across, int32_t step_across, int32_t down, int32_t step_down)
{
    for (int32_t x = 0; x < width; x++)
        to[x] = within((step_down * x + down) >> 16, height) * (width + 2 * EDGE) + within((step_across * x + across) >> 16, width);
}

/* Of each pixel two neighbours of the upper row, then of the lower: loads from anywhere here, arithmetic in the function below. */
static void neighbours(uint32_t *restrict upper, uint32_t *restrict lower, const uint32_t *restrict pixels, const int32_t *restrict at, int32_t width)
{
    for (int32_t x = 0; x < width; x++) {
        memcpy(upper + 2 * x, pixels + at[x], 8);
        memcpy(lower + 2 * x, pixels + at[x] + width + 2 * EDGE, 8);
        __asm__ volatile(""); /* or GCC would gather wide words from single loads, which takes longer */
    }
}

static void mix(uint32_t *restrict to, const uint32_t *restrict upper, const uint32_t *restrict lower, int32_t width, int32_t across, int32_t step_across, int32_t down, int32_t step_down)
{
    const uint32_t m = 0x00ff00ffu;
    for (int32_t x = 0; x < width; x++) {
        const uint32_t right = (step_across * x + across) >> 8 & 255, below = (step_down * x + down) >> 8 & 255;
        const uint32_t a = upper[2 * x], b = upper[2 * x + 1], c = lower[2 * x], d = lower[2 * x + 1];
        const uint32_t even = between(between(a & m, b & m, right), between(c & m, d & m, right), below);
        const uint32_t odd = between(between(a >> 8 & m, b >> 8 & m, right), between(c >> 8 & m, d >> 8 & m, right), below);
        to[x] = even | odd << 8;
    }
}

static void mix_rows(uint8_t *restrict to, const uint8_t *a, const uint8_t *b, ptrdiff_t length, uint16_t part)
{
    const uint16_t rest = 256 - part;
    for (ptrdiff_t i = 0; i < length; i++)
        to[i] = (uint8_t)((uint16_t)(a[i] * rest + b[i] * part + 128) >> 8);
}

/* A move whose rows are pieces of rows (v0 = 65536, v3 = 0), which is all but rotations and shears of columns: they are read from the
 * image with as much of level `fill` around it as is needed, at most (height + 2)(3 width + 2) pixels of `room`, then two rows. */
static void slide(uint8_t *restrict to, const uint8_t *from, shape of, const int32_t *v, int32_t across, int32_t down, int bilinear,
                  uint8_t *restrict room)
{
    const int32_t width = (int32_t)of.width, height = (int32_t)of.height;
    const int32_t one = abs(across >> 16), other = abs((v[1] * (height - 1) + across) >> 16), most = one > other ? one : other;
    const ptrdiff_t border = most < width ? most + 1 : width + 1, length = of.width * of.channels, wide = length + 2 * border * of.channels;
    uint8_t *const inner = room + wide + border * of.channels, *const upper = room + (of.height + 2) * wide, *const lower = upper + length;
    memset(room, v[6], (size_t)((of.height + 2) * wide));
    for (ptrdiff_t y = 0; y < of.height; y++)
        memcpy(inner + y * wide, from + y * length, (size_t)length);
    for (int32_t y = 0; y < height; y++, to += length) {
        const int32_t x = v[1] * y + across, column = x >> 16, z = v[4] * y + down, row = z >> 16;
        const ptrdiff_t start = (column < -border ? -border : column >= border ? border - 1 : column) * of.channels;
        const uint8_t *const a = inner + (row < 0 ? -1 : row > height ? height : row) * wide + start;
        const uint8_t *const b = inner + (row < -1 ? -1 : row >= height ? height : row + 1) * wide + start;
        const uint16_t right = bilinear ? x >> 8 & 255 : 0, below = bilinear ? z >> 8 & 255 : 0;
        if (right && below) {
            mix_rows(upper, a, a + of.channels, length, right);
            mix_rows(lower, b, b + of.channels, length, right);
            mix_rows(to, upper, lower, length, below);
        } else if (right || below)
            mix_rows(to, a, right ? a + of.channels : b, length, right | below);
        else
            memcpy(to, a, (size_t)length);
    }
}

/* `words`: (height + 4)(width + 4) + 2 height * width + 4 width. */
static void move(uint8_t *restrict to, const uint8_t *from, shape of, const double *values, int bilinear, uint32_t *restrict words)
{
    int32_t v[7];
    for (int i = 0; i < 7; i++)
        v[i] = (int32_t)values[i];
    const int32_t width = (int32_t)of.width, height = (int32_t)of.height, wide = width + 2 * EDGE;
    const int32_t across = v[2] - (bilinear ? 32768 : 0), down = v[5] - (bilinear ? 32768 : 0);
    if (v[0] == 65536 && v[3] == 0) {
        slide(to, from, of, v, across, down, bilinear, (uint8_t *)words);
        return;
    }
    const uint32_t *pixels = words + EDGE * wide + EDGE;
    uint32_t *restrict line = words + (ptrdiff_t)wide * (height + 2 * EDGE), *restrict upper = line + of.height * of.width;
    uint32_t *restrict lower = upper + 2 * width;
    int32_t *restrict at = (int32_t *)(lower + 2 * width);
    widen(words, from, of, (uint32_t)v[6]);
    for (int32_t y = 0; y < height; y++)
        places(at + y * width, width, height, v[1] * y + across, v[0], v[4] * y + down, v[3]);
    for (int32_t y = 0; bilinear && y < height; y++) {
        neighbours(upper, lower, pixels, at + y * width, width);
        mix(line + y * width, upper, lower, width, v[1] * y + across, v[0], v[4] * y + down, v[3]);
    }
    int32_t i = 0;
    for (; !bilinear && i + 4 <= height * width; i += 4) {
        const uint32_t four[] = {pixels[at[i]], pixels[at[i + 1]], pixels[at[i + 2]], pixels[at[i + 3]]};
        memcpy(line + i, four, 16);
        __asm__ volatile(""); /* or GCC would gather, which takes longer */
    }
    for (; !bilinear && i < height * width; i++)
        line[i] = pixels[at[i]];
    narrow(to, line, of.height * of.width, of.channels);
}

#ifdef __AVX512VBMI__
/* Byte i of the 3 x 64 at `to` is byte order[i] of the 3 x 64 at `from`; the next 64 stand `gap` further. */
static inline void permute(uint8_t *to, ptrdiff_t to_gap, const uint8_t *from, ptrdiff_t from_gap, const uint8_t *order)
{
    const __m512i a = _mm512_loadu_si512(from), b = _mm512_loadu_si512(from + from_gap), c = _mm512_loadu_si512(from + 2 * from_gap);
    for (int k = 0; k < 3; k++) {
        const __m512i which = _mm512_loadu_si512(order + 64 * k), found = _mm512_permutex2var_epi8(a, which, b);
        _mm512_storeu_si512(to + k * to_gap, _mm512_mask_permutexvar_epi8(found, _mm512_movepi8_mask(which), which, c));
    }
}
#endif

/* Pixels into three planes, 16 pixels at a time: two shuffles bring their bytes into each of three vectors; what the first
 * leaves open (0) the second fills. */
static void apart(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels)
{
    ptrdiff_t i = 0;
#ifdef __AVX512VBMI__
    uint8_t order[192];
    for (int k = 0; k < 192; k++)
        order[k] = (uint8_t)(k % 64 * 3 + k / 64);
    for (; i + 64 <= pixels; i += 64)
        permute(to + i, pixels, from + 3 * i, 64, order);
#endif
    for (; SHUFFLES && i + 16 <= pixels; i += 16) {
        sixteen a, b, c, red, green, blue;
        memcpy(&a, from + 3 * i, 16);
        memcpy(&b, from + 3 * i + 16, 16);
        memcpy(&c, from + 3 * i + 32, 16);
        red = SHUFFLE(a, b, 0, 3, 6, 9, 12, 15, 18, 21, 24, 27, 30, 0, 0, 0, 0, 0);
        green = SHUFFLE(a, b, 1, 4, 7, 10, 13, 16, 19, 22, 25, 28, 31, 0, 0, 0, 0, 0);
        blue = SHUFFLE(a, b, 2, 5, 8, 11, 14, 17, 20, 23, 26, 29, 0, 0, 0, 0, 0, 0);
        red = SHUFFLE(red, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 17, 20, 23, 26, 29);
        green = SHUFFLE(green, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 18, 21, 24, 27, 30);
        blue = SHUFFLE(blue, c, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 19, 22, 25, 28, 31);
        memcpy(to + i, &red, 16);
        memcpy(to + pixels + i, &green, 16);
        memcpy(to + 2 * pixels + i, &blue, 16);
    }
    for (; i < pixels; i++)
        for (ptrdiff_t c = 0; c < 3; c++)
            to[c * pixels + i] = from[3 * i + c];
}

/* Planes into pixels. */
static void together(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels)
{
    ptrdiff_t i = 0;
#ifdef __AVX512VBMI__
    uint8_t order[192];
    for (int k = 0; k < 192; k++)
        order[k] = (uint8_t)(k % 3 * 64 + k / 3);
    for (; i + 64 <= pixels; i += 64)
        permute(to + 3 * i, 64, from + i, pixels, order);
#endif
    for (; SHUFFLES && i + 16 <= pixels; i += 16) {
        sixteen a, b, c, red, green, blue;
        memcpy(&red, from + i, 16);
        memcpy(&green, from + pixels + i, 16);
        memcpy(&blue, from + 2 * pixels + i, 16);
        a = SHUFFLE(red, green, 0, 16, 0, 1, 17, 0, 2, 18, 0, 3, 19, 0, 4, 20, 0, 5);
        b = SHUFFLE(red, green, 21, 0, 6, 22, 0, 7, 23, 0, 8, 24, 0, 9, 25, 0, 10, 26);
        c = SHUFFLE(red, green, 0, 11, 27, 0, 12, 28, 0, 13, 29, 0, 14, 30, 0, 15, 31, 0);
        a = SHUFFLE(a, blue, 0, 1, 16, 3, 4, 17, 6, 7, 18, 9, 10, 19, 12, 13, 20, 15);
        b = SHUFFLE(b, blue, 0, 21, 2, 3, 22, 5, 6, 23, 8, 9, 24, 11, 12, 25, 14, 15);
        c = SHUFFLE(c, blue, 26, 1, 2, 27, 4, 5, 28, 7, 8, 29, 10, 11, 30, 13, 14, 31);
        memcpy(to + 3 * i, &a, 16);
        memcpy(to + 3 * i + 16, &b, 16);
        memcpy(to + 3 * i + 32, &c, 16);
    }
    for (; i < pixels; i++)
        for (ptrdiff_t c = 0; c < 3; c++)
            to[3 * i + c] = from[c * pixels + i];
}

/* Whether step `code` does something; one channel has no colours to change. */
static inline int acts(int code, ptrdiff_t channels)
{
    return code != IDENTITY && (channels == 3 || (code != HUE && code != COLOR));
}

/* The steps of a plan one after the other, in both `images` by turns; the number of the one with the result. The image is in the first. */
static int change(uint8_t *const images[2], shape of, const double *plan, ptrdiff_t steps, uint32_t *words)
{
    const ptrdiff_t pixels = of.height * of.width, size = pixels * of.channels;
    int planes = 0, now = 0;
    for (ptrdiff_t s = 0; s <= steps; s++, plan += VALUES) {
        const int code = s < steps ? (int)plan[0] : NEAREST; /* the end takes pixels, too */
        if (!acts(code, of.channels))
            continue;
        if (of.channels == 3 && !(1 << code & ANYHOW) && planes != !(1 << code & IN_PIXELS)) {
            planes = !planes;
            (planes ? apart : together)(images[!now], images[now], pixels);
            now = !now;
        }
        if (s == steps)
            return now;
        uint8_t *const image = images[now], *const other = images[!now];
        uint8_t *const green = image + (size - pixels) / 2, *const blue = image + size - pixels;
        const float factor = (float)plan[1];
        if (1 << code & (ANYHOW | 1 << CONTRAST))
            change_levels(image, size, code, plan[1], code == CONTRAST ? mean_grey(image, green, blue, pixels) : 0);
        else if (code == EQUALIZE)
            equalize(image, pixels, of.channels);
        else if (code == AUTOCONTRAST)
            for (ptrdiff_t c = 0; c < of.channels; c++)
                autocontrast(image + c * pixels, pixels);
        else if (code == COLOR || code == HUE)
            (code == COLOR ? color : turn_hue)(image, green, blue, pixels, factor);
        else if (code == SHARPNESS)
            sharpness(other, image, of.height, of.width * of.channels, of.channels, factor, (uint16_t *)words);
        else
            move(other, image, of, plan + 1, code == BILINEAR, words);
        now ^= (1 << code & IN_PIXELS) != 0;
    }
    return now;
}
