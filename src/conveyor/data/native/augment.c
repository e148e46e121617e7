/* Shift, mirror and normalise a batch of 8-bit images of equal size in one pass over memory.
 *
 * An image is [height][width][channels]. Of the image with `padding` pixels added on each side (zero, or mirrored at the
 * border, which is not repeated) the window at (row, column) is taken, turned left to right where `mirror` says so, and
 * written as value * scale + shift. Product and sum are rounded one after the other, as two separate operations would.
 */

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#define SERIAL (1 << 17) /* values below which threads cost more than they save */

static ptrdiff_t inside(ptrdiff_t position, ptrdiff_t extent, int mirrored)
{
    if (position >= 0 && position < extent)
        return position;
    if (!mirrored)
        return -1;
    return position < 0 ? -position : 2 * (extent - 1) - position;
}

typedef uint8_t sixteen __attribute__((vector_size(16)));
#ifdef __clang__
#define SHUFFLE(values, ...) __builtin_shufflevector(values, values, __VA_ARGS__)
#else /* GCC has that name from version 12 on only */
#define SHUFFLE(values, ...) __builtin_shuffle(values, (sixteen){__VA_ARGS__})
#endif

static void turn(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t width, ptrdiff_t channels)
{
    ptrdiff_t x = 0;
    /* Five pixels at a time, and a byte before them, so that nothing beyond the row is read or written. */
    for (; channels == 3 && x + 6 <= width; x += 5) {
        sixteen five;
        memcpy(&five, from + 3 * (width - 5 - x) - 1, 16);
        five = SHUFFLE(five, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
        memcpy(to + 3 * x, &five, 16);
    }
    for (; channels == 1 && x < width; x++)
        to[x] = from[width - 1 - x];
    for (; x < width; x++)
        for (ptrdiff_t c = 0; c < channels; c++)
            to[channels * x + c] = from[channels * (width - 1 - x) + c];
}

/* The window's row before it is turned: `width` pixels from `column` on, which counts from the added border. */
static void window(uint8_t *restrict to, const uint8_t *restrict row, ptrdiff_t column, ptrdiff_t width, ptrdiff_t channels, int mirrored)
{
    ptrdiff_t first = column < 0 ? -column : 0, end = width - (column > 0 ? column : 0);
    if (end > first)
        memcpy(to + first * channels, row + (first + column) * channels, (size_t)((end - first) * channels));
    for (ptrdiff_t x = 0; x < width; x++) {
        if (x == first && end > first)
            x = end;
        if (x >= width)
            break;
        ptrdiff_t source = inside(x + column, width, mirrored);
        if (source < 0)
            memset(to + x * channels, 0, (size_t)channels);
        else
            memcpy(to + x * channels, row + source * channels, (size_t)channels);
    }
}

/* `offsets` [batch][2] are (row, column) in 0 .. 2 padding, or NULL for the image itself; `mirror` [batch] or NULL;
 * `scale` and `shift` [width * channels], without `scale` `out` is of bytes, as they are; `scratch` [batch][2][width * channels] bytes. */
void conveyor_augment(const uint8_t *images, ptrdiff_t batch, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels,
                      ptrdiff_t padding, int mirrored, const int64_t *offsets, const uint8_t *mirror, const float *scale,
                      const float *shift, uint8_t *scratch, float *out, int threads)
{
    const ptrdiff_t length = width * channels;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && batch * height * length > SERIAL)
    for (ptrdiff_t b = 0; b < batch; b++) {
        const uint8_t *image = images + b * height * length;
        float *restrict to = out + b * height * length;
        uint8_t *moved = scratch + b * 2 * length, *turned = moved + length;
        const ptrdiff_t down = offsets ? (ptrdiff_t)offsets[2 * b] - padding : 0;
        const ptrdiff_t across = offsets ? (ptrdiff_t)offsets[2 * b + 1] - padding : 0;
        for (ptrdiff_t y = 0; y < height; y++, to += length) {
            uint8_t *plain = scale ? NULL : (uint8_t *)out + (b * height + y) * length;
            const ptrdiff_t source = inside(y + down, height, mirrored);
            if (source < 0 && plain) {
                memset(plain, 0, (size_t)length);
                continue;
            }
            if (source < 0) {
                for (ptrdiff_t i = 0; i < length; i++)
                    to[i] = shift[i];
                continue;
            }
            const uint8_t *row = image + source * length;
            if (across) {
                window(moved, row, across, width, channels, mirrored);
                row = moved;
            }
            if (mirror && mirror[b]) {
                turn(turned, row, width, channels);
                row = turned;
            }
            if (plain) {
                memcpy(plain, row, (size_t)length);
                continue;
            }
            for (ptrdiff_t i = 0; i < length; i++)
                to[i] = (float)row[i] * scale[i] + shift[i];
        }
    }
}
