/* Shift, mirror, change, normalise and erase parts of a batch of 8-bit images of equal size in one pass over memory.
 *
 * An image is [height][width][channels]. Of the image with `padding` pixels added on each side (zero, or mirrored at the
 * border, which is not repeated) the window at (row, column) is taken, turned left to right where `mirror` says so,
 * changed as its plan says (change.h), and written as value * scale + shift, a box of it as zeros. Product and sum are
 * rounded one after the other, as two separate operations would.
 */

#include <omp.h>

#include "change.h"

#define SERIAL (1 << 17) /* values below which threads cost more than they save */

static ptrdiff_t inside(ptrdiff_t position, ptrdiff_t extent, int mirrored)
{
    if (position >= 0 && position < extent)
        return position;
    if (!mirrored)
        return -1;
    return position < 0 ? -position : 2 * (extent - 1) - position;
}

static void turn(uint8_t *restrict to, const uint8_t *restrict from, ptrdiff_t width, ptrdiff_t channels)
{
    ptrdiff_t x = 0;
    /* Five pixels at a time, and a byte before them, so that nothing beyond the row is read or written. */
    for (; channels == 3 && x + 6 <= width; x += 5) {
        sixteen five;
        memcpy(&five, from + 3 * (width - 5 - x) - 1, 16);
        five = SHUFFLE(five, five, 13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, 0);
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

/* A row of the result: normalised, or without `scale` as it is; zeros where `row` is NULL. */
static void put(void *to, const uint8_t *restrict row, ptrdiff_t length, const float *restrict scale, const float *restrict shift)
{
    float *restrict values = to;
    if (!scale && row)
        memcpy(to, row, (size_t)length);
    else if (!scale)
        memset(to, 0, (size_t)length);
    else
        for (ptrdiff_t i = 0; i < length; i++)
            values[i] = row ? (float)row[i] * scale[i] + shift[i] : shift[i];
}

/* `offsets` [batch][2] are (row, column) in 0 .. 2 padding, or NULL for the image itself; `mirror` [batch] or NULL; `plan`
 * [batch][steps][VALUES] or NULL; `boxes` [batch][4], top, bottom, left, right, or NULL; `scale` and `shift` [width *
 * channels], without `scale` `out` is of bytes; `scratch` [threads] of `room` bytes: two rows, and with a plan two images
 * and the words of `move`, from the next multiple of 64 on. */
void conveyor_augment(const uint8_t *images, ptrdiff_t batch, ptrdiff_t height, ptrdiff_t width, ptrdiff_t channels,
                      ptrdiff_t padding, int mirrored, const int64_t *offsets, const uint8_t *mirror, const double *plan,
                      ptrdiff_t steps, const int64_t *boxes, const float *scale, const float *shift, uint8_t *scratch,
                      ptrdiff_t room, uint8_t *out, int threads)
{
    const shape of = {height, width, channels};
    const ptrdiff_t length = width * channels, size = height * length, each = scale ? sizeof(float) : 1;
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1 && batch * size > SERIAL)
    for (ptrdiff_t b = 0; b < batch; b++) {
        const double *steps_here = plan ? plan + b * steps * VALUES : NULL;
        uint8_t *moved = scratch + room * omp_get_thread_num(), *turned = moved + length;
        uint8_t *const changed[2] = {turned + length, turned + length + size}, *to = out + b * size * each;
        const ptrdiff_t down = offsets ? (ptrdiff_t)offsets[2 * b] - padding : 0;
        const ptrdiff_t across = offsets ? (ptrdiff_t)offsets[2 * b + 1] - padding : 0;
        int changes = 0;
        for (ptrdiff_t s = 0; plan && s < steps; s++)
            changes |= acts((int)steps_here[s * VALUES], channels);
        for (ptrdiff_t y = 0; y < height; y++) {
            const ptrdiff_t source = inside(y + down, height, mirrored);
            const uint8_t *row = source < 0 ? NULL : images + b * size + source * length;
            if (row && across) {
                window(moved, row, across, width, channels, mirrored);
                row = moved;
            }
            if (row && mirror && mirror[b]) {
                turn(turned, row, width, channels);
                row = turned;
            }
            if (changes)
                put(changed[0] + y * length, row, length, NULL, NULL);
            else
                put(to + y * length * each, row, length, scale, shift);
        }
        if (changes) {
            uint32_t *words = (uint32_t *)(moved + ((2 * length + 2 * size + 63) & ~(ptrdiff_t)63));
            const uint8_t *found = changed[change(changed, of, steps_here, steps, words)];
            for (ptrdiff_t y = 0; y < height; y++)
                put(to + y * length * each, found + y * length, length, scale, shift);
        }
        for (ptrdiff_t y = boxes ? boxes[4 * b] : 0; boxes && y < boxes[4 * b + 1]; y++) {
            const ptrdiff_t left = boxes[4 * b + 2] * channels, right = boxes[4 * b + 3] * channels;
            memset(to + (y * length + left) * each, 0, (size_t)((right - left) * each));
        }
    }
}
