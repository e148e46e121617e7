/* Group norm on channels-last tensors: x[n, p, c] with n samples, p = H * W places and c contiguous channels.
 *
 * Sums are taken per channel, in float over blocks of places and in double over blocks, relative to the channel's first
 * value, so that a large mean costs no accuracy; the moments of a group follow from those of its channels. Samples are
 * shared out among threads and never cut, so the number of threads does not change a result.
 */
#include <stdlib.h>
#include <string.h>
#include <math.h>
#include <omp.h>

#include "sums.h"

#include "floats.h"
#include "group_norm_values.h"
#include "brains.h"
#include "group_norm_values.h"
