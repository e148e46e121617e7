/* The gradients of a depthwise convolution, channels last. That of its weights:
 *
 *   dw[c, i, j] = sum over n, h, w of dy[n, h, w, c] * x[n, h * stride + i - pad, w * stride + j - pad, c]
 *
 * Channels do not touch each other, so they are cut into tiles of 16 (two vectors of 8), and the threads share the tiles:
 * the result does not depend on their number. For one line of the kernel a tile's sums stay in registers over all
 * images; a tile of the pictures stays in the cache from one line of the kernel to the next. The gradient of the input is a
 * sum of at most k * k products, taken in a fixed order.
 */
#include <stddef.h>

#define TILE 16
#define WIDEST 7 /* kernel width up to which the sums of a line fit */

typedef struct {
    ptrdiff_t batch, height, width, channels, out_height, out_width, stride, pad_top, pad_left;
} Shape;

#include "floats.h"
#include "depthwise_values.h"
#include "brains.h"
#include "depthwise_values.h"
