/* Operations of augmentation on 8-bit images [height][width][channels], at most four channels: see transform/operations.py,
 * which does the same by PyTorch. Whole numbers, and float32 operations rounded one after the other, so the bits are equal. */

#include <math.h>
#include <omp.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { IDENTITY, AUTOCONTRAST, EQUALIZE, SOLARIZE, POSTERIZE, COLOR, CONTRAST, BRIGHTNESS, SHARPNESS, NEAREST, BILINEAR, HUE };

#define VALUES 8 /* of a step in the plan: a code, six values, the level outside the image */
#define EDGE 2   /* pixels of that level around an image of whole words */
#define LINE 256 /* pixels whose colours are changed together */
#define SERIAL (1 << 17)

typedef struct {
    ptrdiff_t height, width, channels;
} shape;

static inline int32_t blend(int32_t plain, int32_t value, float factor)
{
    float found = (float)(value - plain) * factor + (float)plain;
    found = found < 0 ? 0 : found;
    return (int32_t)(found > 255 ? 255 : found);
}

static inline int32_t luma(int32_t red, int32_t green, int32_t blue)
{
    return (red * 19595 + green * 38470 + blue * 7471 + 32768) >> 16;
}

static inline int32_t grey(const uint8_t *pixel, ptrdiff_t channels)
{
    int32_t sum = 0;
    for (ptrdiff_t c = 0; c < channels; c++)
        sum += pixel[c];
    return (2 * sum + (int32_t)channels) / (2 * (int32_t)channels);
}

static int64_t grey_sum(const uint8_t *restrict from, ptrdiff_t pixels, ptrdiff_t channels)
{
    int64_t sum = 0;
    for (ptrdiff_t done = 0; done < pixels;) {
        int32_t part = 0;
        const ptrdiff_t end = pixels - done < 4096 ? pixels : done + 4096;
        if (channels == 3)
            for (; done < end; done++)
                part += luma(from[3 * done], from[3 * done + 1], from[3 * done + 2]);
        else
            for (; done < end; done++)
                part += grey(from + channels * done, channels);
        sum += part;
    }
    return sum;
}

static void count(const uint8_t *from, ptrdiff_t pixels, ptrdiff_t channels, uint32_t counts[4][256])
{
    uint32_t more[4][256] = {{0}}; /* neighbours are often equal: two sets of counters wait less for each other */
    memset(counts, 0, sizeof more);
    ptrdiff_t i = 0;
    for (; i + 2 <= pixels; i += 2, from += 2 * channels)
        for (ptrdiff_t c = 0; c < channels; c++) {
            counts[c][from[c]]++;
            more[c][from[channels + c]]++;
        }
    for (ptrdiff_t c = 0; i < pixels && c < channels; c++)
        counts[c][from[c]]++;
    for (ptrdiff_t c = 0; c < channels; c++)
        for (int level = 0; level < 256; level++)
            counts[c][level] += more[c][level];
}

/* What each level becomes, for operations that look at each level by itself. */
static void tables(int code, double value, const uint8_t *from, ptrdiff_t pixels, ptrdiff_t channels, uint8_t table[4][256])
{
    uint32_t counts[4][256];
    int32_t plain = 0;
    if (code == AUTOCONTRAST || code == EQUALIZE)
        count(from, pixels, channels, counts);
    if (code == CONTRAST)
        plain = (int32_t)floor((double)grey_sum(from, pixels, channels) / (double)pixels + 0.5);
    for (ptrdiff_t c = 0; c < channels; c++) {
        int low = 0, high = 255;
        if (code == AUTOCONTRAST || code == EQUALIZE) {
            while (!counts[c][low])
                low++;
            while (!counts[c][high])
                high--;
        }
        const double scale = 255.0 / (high > low ? high - low : 1), offset = -(double)low * scale;
        const int64_t step = code == EQUALIZE ? (pixels - counts[c][high]) / 255 : 0;
        int64_t darker = step / 2;
        for (int level = 0; level < 256; level++) {
            int64_t found = level;
            if (code == SOLARIZE)
                found = level >= value ? 255 - level : level;
            else if (code == POSTERIZE)
                found = level >> (int)value << (int)value;
            else if (code == BRIGHTNESS || code == CONTRAST)
                found = blend(plain, level, (float)value);
            else if (code == AUTOCONTRAST && high > low) {
                const double stretched = level * scale + offset;
                found = stretched < 0 ? 0 : stretched > 255 ? 255 : (int64_t)stretched;
            } else if (code == EQUALIZE && step) {
                found = darker / step > 255 ? 255 : darker / step;
                darker += counts[c][level];
            }
            table[c][level] = (uint8_t)found;
        }
    }
}

static void look_up(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels, ptrdiff_t channels, uint8_t table[4][256])
{
    if (channels == 3) {
        for (ptrdiff_t i = 0; i < 3 * pixels; i += 3) {
            to[i] = table[0][from[i]];
            to[i + 1] = table[1][from[i + 1]];
            to[i + 2] = table[2][from[i + 2]];
        }
        return;
    }
    for (ptrdiff_t i = 0; i < pixels; i++)
        for (ptrdiff_t c = 0; c < channels; c++)
            to[i * channels + c] = table[c][from[i * channels + c]];
}

/* Of three planes of LINE bytes each: the colours of neighbouring pixels side by side, as wide instructions take them. */
static void color(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels, float factor)
{
    for (ptrdiff_t i = 0; i < pixels; i++) {
        const int32_t plain = luma(from[i], from[LINE + i], from[2 * LINE + i]);
        to[i] = (uint8_t)blend(plain, from[i], factor);
        to[LINE + i] = (uint8_t)blend(plain, from[LINE + i], factor);
        to[2 * LINE + i] = (uint8_t)blend(plain, from[2 * LINE + i], factor);
    }
}

static void sharpness(uint8_t *restrict to, const uint8_t *restrict from, shape of, float factor)
{
    const ptrdiff_t step = of.channels, row = of.width * step;
    memcpy(to, from, (size_t)(of.height * row));
    if (of.height < 3 || of.width < 3)
        return;
    for (ptrdiff_t y = 1; y < of.height - 1; y++) {
        const uint8_t *middle = from + y * row, *above = middle - row, *below = middle + row;
        uint8_t *restrict there = to + y * row;
        for (ptrdiff_t i = step; i < row - step; i++) {
            const uint32_t sum = above[i - step] + above[i] + above[i + step] + middle[i - step] + 5u * middle[i] +
                                 middle[i + step] + below[i - step] + below[i] + below[i + step];
            there[i] = (uint8_t)blend((int32_t)((2 * sum + 13) / 26), middle[i], factor);
        }
    }
}

static inline uint8_t of_hue(float n, float hue, float value, float spread)
{
    float k = hue + n;
    k = k - 6 * floorf(k * (float)(1.0 / 6));
    float part = 4 - k < k ? 4 - k : k;
    part = part < 0 ? 0 : part;
    part = part > 1 ? 1 : part;
    return (uint8_t)(int32_t)(value - part * spread + 0.5f);
}

/* Of planes, as `color`. */
static void turn(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels, float share)
{
    const float turned = 6 * share;
    for (ptrdiff_t i = 0; i < pixels; i++) {
        const float red = from[i], green = from[LINE + i], blue = from[2 * LINE + i];
        const float high = red > green ? red : green, low = red > green ? green : red;
        const float value = high > blue ? high : blue, spread = value - (low < blue ? low : blue);
        const float top = value == red ? green - blue : value == green ? blue - red : red - green;
        const float sector = value == red ? 0.0f : value == green ? 2.0f : 4.0f;
        const float hue = sector + top / (spread < 1 ? 1.0f : spread) + turned;
        to[i] = of_hue(5, hue, value, spread);
        to[LINE + i] = of_hue(3, hue, value, spread);
        to[2 * LINE + i] = of_hue(1, hue, value, spread);
    }
}

/* COLOR or HUE, of other than three channels COLOR alone. */
static void recolor(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t pixels, ptrdiff_t channels, int code, float value)
{
    uint8_t before[3 * LINE], after[3 * LINE];
    if (channels != 3)
        for (ptrdiff_t i = 0; i < pixels; i++)
            for (ptrdiff_t c = 0; c < channels; c++)
                to[i * channels + c] = (uint8_t)blend(grey(from + i * channels, channels), from[i * channels + c], value);
    else
        for (ptrdiff_t count = LINE; pixels > 0; pixels -= count, from += 3 * count, to += 3 * count) {
            count = pixels < LINE ? pixels : LINE;
            for (ptrdiff_t i = 0; i < count; i++)
                for (ptrdiff_t c = 0; c < 3; c++)
                    before[c * LINE + i] = from[3 * i + c];
            (code == HUE ? turn : color)(after, before, count, value);
            for (ptrdiff_t i = 0; i < count; i++)
                for (ptrdiff_t c = 0; c < 3; c++)
                    to[3 * i + c] = after[c * LINE + i];
        }
}

/* Pixels as words, with EDGE pixels of level `fill` on each side. */
static void widen(uint32_t *restrict to, const uint8_t *restrict from, shape of, uint32_t fill)
{
    const ptrdiff_t wide = of.width + 2 * EDGE;
    for (ptrdiff_t i = 0; i < wide * (of.height + 2 * EDGE); i++)
        to[i] = fill * 0x01010101u;
    for (ptrdiff_t y = 0; y < of.height; y++, from += of.width * of.channels) {
        uint32_t *restrict row = to + (y + EDGE) * wide + EDGE;
        if (of.channels == 3)
            for (ptrdiff_t x = 0; x < of.width; x++)
                row[x] = from[3 * x] | (uint32_t)from[3 * x + 1] << 8 | (uint32_t)from[3 * x + 2] << 16;
        else
            for (ptrdiff_t x = 0; x < of.width; x++) {
                row[x] = 0;
                for (ptrdiff_t c = 0; c < of.channels; c++)
                    row[x] |= (uint32_t)from[of.channels * x + c] << (8 * c);
            }
    }
}

/* Two levels in each of two words, in the bytes 0 and 2: a + (b - a) part / 256, rounded. */
static inline uint32_t between(uint32_t a, uint32_t b, uint32_t part)
{
    return (a * (256 - part) + b * part + 0x00800080u) >> 8 & 0x00ff00ffu;
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

/* Four neighbours of each pixel as four lines in `words`: loads from anywhere here, arithmetic in the function below. */
static void neighbours(uint32_t *restrict words, const uint32_t *restrict pixels, const int32_t *restrict at, int32_t width)
{
    uint32_t *restrict right = words + width, *restrict below = right + width, *restrict across = below + width;
    const uint32_t *restrict next = pixels + width + 2 * EDGE;
    for (int32_t x = 0; x < width; x++) {
        words[x] = pixels[at[x]];
        right[x] = pixels[at[x] + 1];
        below[x] = next[at[x]];
        across[x] = next[at[x] + 1];
    }
}

static void mix(uint32_t *restrict to, const uint32_t *restrict words, int32_t width, int32_t across, int32_t step_across, int32_t down, int32_t step_down)
{
    const uint32_t m = 0x00ff00ffu;
    for (int32_t x = 0; x < width; x++) {
        const uint32_t right = (step_across * x + across) >> 8 & 255, below = (step_down * x + down) >> 8 & 255;
        const uint32_t a = words[x], b = words[x + width], c = words[x + 2 * width], d = words[x + 3 * width];
        const uint32_t even = between(between(a & m, b & m, right), between(c & m, d & m, right), below);
        const uint32_t odd = between(between(a >> 8 & m, b >> 8 & m, right), between(c >> 8 & m, d >> 8 & m, right), below);
        to[x] = even | odd << 8;
    }
}

static void move(uint8_t *restrict to, const uint8_t *from, shape of, const double *values, int bilinear, uint32_t *restrict words)
{
    int32_t v[6];
    for (int i = 0; i < 6; i++)
        v[i] = (int32_t)values[i];
    const int32_t width = (int32_t)of.width, height = (int32_t)of.height, wide = width + 2 * EDGE, half = bilinear ? 32768 : 0;
    const uint32_t *pixels = words + EDGE * wide + EDGE;
    uint32_t *restrict line = words + (ptrdiff_t)wide * (height + 2 * EDGE), *restrict four = line + width;
    int32_t *restrict at = (int32_t *)(four + 4 * width);
    widen(words, from, of, (uint32_t)values[6]);
    for (int32_t y = 0; y < height; y++, to += of.width * of.channels) {
        const int32_t across = v[1] * y + v[2] - half, down = v[4] * y + v[5] - half;
        places(at, width, height, across, v[0], down, v[3]);
        if (bilinear) {
            neighbours(four, pixels, at, width);
            mix(line, four, width, across, v[0], down, v[3]);
        } else
            for (int32_t x = 0; x < width; x++)
                line[x] = pixels[at[x]];
        if (of.channels == 3)
            for (int32_t x = 0; x < width; x++) {
                to[3 * x] = (uint8_t)line[x];
                to[3 * x + 1] = (uint8_t)(line[x] >> 8);
                to[3 * x + 2] = (uint8_t)(line[x] >> 16);
            }
        else
            for (int32_t x = 0; x < width; x++)
                for (ptrdiff_t c = 0; c < of.channels; c++)
                    to[of.channels * x + c] = (uint8_t)(line[x] >> (8 * c));
    }
}

static void change(uint8_t *to, const uint8_t *from, shape of, int code, const double *values, uint32_t *words)
{
    const ptrdiff_t pixels = of.height * of.width;
    uint8_t table[4][256];
    if (code == NEAREST || code == BILINEAR)
        move(to, from, of, values, code == BILINEAR, words);
    else if (code == HUE || code == COLOR)
        recolor(to, from, pixels, of.channels, code, (float)values[0]);
    else if (code == SHARPNESS)
        sharpness(to, from, of, (float)values[0]);
    else {
        tables(code, values[0], from, pixels, of.channels, table);
        look_up(to, from, pixels, of.channels, table);
    }
}

/* `plan` [batch][steps][VALUES]; `scratch` [threads] of `room` bytes: (height + 4)(width + 4) + 6 width words, then an image. */
void conveyor_change(const uint8_t *images, ptrdiff_t batch, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels,
                     const double *plan, ptrdiff_t steps, uint8_t *scratch, ptrdiff_t room, uint8_t *out, int threads)
{
    const shape of = {height, width, channels};
    const ptrdiff_t size = height * width * channels;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && batch * size > SERIAL)
    for (ptrdiff_t b = 0; b < batch; b++) {
        uint32_t *words = (uint32_t *)(scratch + room * omp_get_thread_num());
        uint8_t *other = (uint8_t *)(words + (height + 2 * EDGE) * (width + 2 * EDGE) + 6 * width);
        const double *mine = plan + b * steps * VALUES;
        const uint8_t *from = images + b * size;
        ptrdiff_t left = 0;
        for (ptrdiff_t s = 0; s < steps; s++)
            left += mine[s * VALUES] != IDENTITY && (channels == 3 || mine[s * VALUES] != HUE);
        if (!left)
            memcpy(out + b * size, from, (size_t)size);
        for (ptrdiff_t s = 0; s < steps; s++) {
            const int code = (int)mine[s * VALUES];
            if (code == IDENTITY || (code == HUE && channels != 3))
                continue;
            uint8_t *to = left-- % 2 ? out + b * size : other; /* the last step writes the result */
            change(to, from, of, code, mine + s * VALUES + 1, words);
            from = to;
        }
    }
}
