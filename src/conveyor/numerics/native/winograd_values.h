/* The functions of winograd.c for one type of values: float, or bfloat16 read and written with float32 inside. */

/* ---- two dimensions: pictures to places and back ---- */

/* V[place][tile][channel] = B^T d B for all channels of one tile; beyond the border the picture is zero. */
static void NAME(tile_of_input)(const VALUE *x, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *v, ptrdiff_t plane) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    const VALUE *base = x + image * s->height * s->width * channels;
    int inside = top > 0 && left > 0 && top + 5 <= s->height && left + 5 <= s->width;
    for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
        vec d[PLACES], half[PLACES], out[PLACES];
        for (int i = 0; i < 6; i++) {
            ptrdiff_t row = top + i - 1;
            const VALUE *line = base + (row * s->width + left - 1) * channels + c;
            for (int j = 0; j < 6; j++) {
                ptrdiff_t column = left + j - 1;
                if (inside || (row >= 0 && row < s->height && column >= 0 && column < s->width))
                    d[i * 6 + j] = NAME(load)(line + j * channels);
                else d[i * 6 + j] = (vec){0};
            }
        }
        for (int j = 0; j < 6; j++) transform_input(d + j, 6, half + j, 6);
        for (int i = 0; i < 6; i++) transform_input(half + i * 6, 1, out + i * 6, 1);
        for (int place = 0; place < PLACES; place++) store(v + place * plane + c, out[place]);
    }
}

/* The tile of y from M[place][tile][channel], A^T m A + bias (or null), cut at the border. */
static void NAME(tile_of_output)(const float *m, ptrdiff_t plane, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, VALUE *y,
                           const float *bias) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    ptrdiff_t lines = s->height - top < 4 ? s->height - top : 4, columns = s->width - left < 4 ? s->width - left : 4;
    ptrdiff_t corner = ((image * s->height + top) * s->width + left) * channels;
    for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
        vec in[PLACES], half[24], out[16];
        for (int place = 0; place < PLACES; place++) in[place] = load(m + place * plane + c);
        for (int j = 0; j < 6; j++) transform_output(in + j, 6, half + j, 6);
        for (int i = 0; i < 4; i++) transform_output(half + i * 6, 1, out + i * 4, 1);
        vec added = {0};
        if (bias) added = load(bias + c);
        for (ptrdiff_t i = 0; i < lines; i++)
            for (ptrdiff_t j = 0; j < columns; j++)
                NAME(store)(y + corner + (i * s->width + j) * channels + c, out[i * 4 + j] + added);
    }
}

/* Z[place][tile][channel] = A dy A^T; beyond the border the gradient is zero. */
static void NAME(tile_of_gradient)(const VALUE *dy, const Shape *s, ptrdiff_t channels, ptrdiff_t tile, float *z,
                             ptrdiff_t plane) {
    ptrdiff_t image, top, left;
    locate(s, tile, &image, &top, &left);
    const VALUE *base = dy + ((image * s->height + top) * s->width + left) * channels;
    for (ptrdiff_t c = 0; c < channels; c += WIDTH) {
        vec in[16], half[24], out[PLACES];
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) {
                if (top + i < s->height && left + j < s->width)
                    in[i * 4 + j] = NAME(load)(base + (i * s->width + j) * channels + c);
                else in[i * 4 + j] = (vec){0};
            }
        for (int j = 0; j < 4; j++) transform_gradient(in + j, 4, half + j, 4);
        for (int i = 0; i < 6; i++) transform_gradient(half + i * 4, 1, out + i * 6, 1);
        for (int place = 0; place < PLACES; place++) store(z + place * plane + c, out[place]);
    }
}

/* ---- kernels: w[out][3][3][in] to U[place][panel of 16 results][channel summed over][16] ---- */

/* All 36 places of WIDTH kernels, whose nine weights lie `step` apart. */
static inline void NAME(places_of_kernel)(const VALUE *w, ptrdiff_t step, vec *out) {
    vec g[9], half[18];
    for (int k = 0; k < 9; k++) g[k] = NAME(load)(w + k * step);
    for (int j = 0; j < 3; j++) transform_kernel(g + j, 3, half + j, 3);
    for (int i = 0; i < 6; i++) transform_kernel(half + i * 3, 1, out + i * 6, 1);
}

/* For the forward pass: results are the out channels of one panel, the sum goes over the in channels. */
static void NAME(panel_forward)(const VALUE *w, ptrdiff_t in, ptrdiff_t panel, float *u, ptrdiff_t plane) {
    vec places[PANEL * PLACES];
    const float *values = (const float *)places;
    for (ptrdiff_t c = 0; c < in; c += WIDTH) {
        for (int o = 0; o < PANEL; o++)
            NAME(places_of_kernel)(w + (panel * PANEL + o) * 9 * in + c, in, places + o * PLACES);
        for (int place = 0; place < PLACES; place++)
            for (int part = 0; part < WIDTH; part += 8)
                for (int o = 0; o < PANEL; o += 8)
                    transpose(values + (o * PLACES + place) * WIDTH + part, PLACES * WIDTH,
                              u + place * plane + (panel * in + c + part) * PANEL + o, PANEL);
    }
}

/* For the input's gradient: results are in channels, the sum goes over the out channels, and the kernel is turned. */
static void NAME(panel_backward)(const VALUE *w, ptrdiff_t in, ptrdiff_t out, ptrdiff_t panel, float *u, ptrdiff_t plane) {
    for (ptrdiff_t o = 0; o < out; o++)
        for (int part = 0; part < PANEL; part += WIDTH) {
            vec places[PLACES];
            NAME(places_of_kernel)(w + (o * 9 + 8) * in + panel * PANEL + part, -in, places);
            for (int place = 0; place < PLACES; place++)
                store(u + place * plane + (panel * out + o) * PANEL + part, places[place]);
        }
}

/* ---- the convolution ---- */

/* All tiles, by the threads that call it together: transform the input, multiply with u, transform the result. */
static void NAME(all_tiles)(const Work *k, const VALUE *x, const float *u, ptrdiff_t u_plane, VALUE *y, const float *bias) {
    const Shape *s = &k->s;
    ptrdiff_t strips = strips_of(k->results);
    for (ptrdiff_t start = 0; start < s->tiles; start += k->block) {
        ptrdiff_t count = s->tiles - start < k->block ? s->tiles - start : k->block;
#pragma omp for schedule(static)
        for (ptrdiff_t t = 0; t < count; t++)
            NAME(tile_of_input)(x, s, k->depth, start + t, k->v + t * k->v_pitch, k->v_plane);
#pragma omp for schedule(static)
        for (ptrdiff_t job = 0; job < PLACES * strips; job++) {
            ptrdiff_t place = job / strips, first = job % strips * STRIP;
            product_of_tiles(count, k->v + place * k->v_plane, k->v_pitch, u + place * u_plane + first * k->depth, k->depth,
                             k->m + place * k->m_plane + first, k->m_pitch, length_of(k->results, first));
        }
#pragma omp for schedule(static)
        for (ptrdiff_t t = 0; t < count; t++)
            NAME(tile_of_output)(k->m + t * k->m_pitch, k->m_plane, s, k->results, start + t, y, bias);
    }
}

/* y[n, h, w, out] = convolution of x[n, h, w, in] with w[out, 3, 3, in] + bias (or null); with `turned` the gradient of the
 * input: x is dy with the layer's out channels and y is dx with its in channels. `in` and `out` are always the layer's,
 * multiples of 16. Returns 0, or 1 if memory is short. */
int NAME(conveyor_winograd)(const VALUE *x, const VALUE *w, const float *bias, VALUE *y, ptrdiff_t images, ptrdiff_t height,
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
                if (turned) NAME(panel_backward)(w, in, out, panel, u, u_plane);
                else NAME(panel_forward)(w, in, panel, u, u_plane);
            }
            NAME(all_tiles)(&k, x, u, u_plane, y, bias);
        }
    }
    free(u);
    end(&k);
    return failed;
}

/* dw[out, 3, 3, in] of x[n, h, w, in] and dy[n, h, w, out]. Returns 0, or 1 if memory is short. */
int NAME(conveyor_winograd_weights)(const VALUE *x, const VALUE *dy, VALUE *dw, ptrdiff_t images, ptrdiff_t height,
                              ptrdiff_t width, ptrdiff_t in, ptrdiff_t out) {
    const Shape s = shape_of(images, height, width);
    ptrdiff_t v_pitch = pitch_of(in), z_pitch = pitch_of(out), strips = strips_of(in);
    int threads = threads_for(&s, in, out, omp_get_max_threads());
    /* Sums are taken over parts of `part` tiles, whatever the number of threads: it must not change a bit. */
    ptrdiff_t part = tiles_of_block(&s, PART_BYTES, v_pitch + z_pitch, 1);
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
                    NAME(tile_of_input)(x, &s, in, start + t, v + t * v_pitch, v_plane);
                    NAME(tile_of_gradient)(dy, &s, out, start + t, z + t * z_pitch, z_plane);
                }
#pragma omp for schedule(static)
                for (ptrdiff_t job = 0; job < PLACES * strips; job++) {
                    ptrdiff_t place = job / strips, first = job % strips * STRIP;
                    for (ptrdiff_t t = 0; t < count; t += part)
                        product_over_tiles(out, z + place * z_plane + t * z_pitch, z_pitch,
                                           v + place * v_plane + t * v_pitch + first, v_pitch,
                                           count - t < part ? count - t : part, du + place * u_plane + first, in,
                                           length_of(in, first), start + t > 0);
                }
            }
#pragma omp for schedule(static)
            for (ptrdiff_t o = 0; o < out; o++)
                for (ptrdiff_t c = 0; c < in; c += WIDTH) {
                    vec u[PLACES], half[18], g[9];
                    for (int place = 0; place < PLACES; place++)
                        u[place] = load(du + place * u_plane + o * in + c);
                    for (int j = 0; j < 6; j++) transform_kernel_gradient(u + j, 6, half + j, 6);
                    for (int i = 0; i < 3; i++) transform_kernel_gradient(half + i * 6, 1, g + i * 3, 1);
                    for (int k = 0; k < 9; k++) NAME(store)(dw + (o * 9 + k) * in + c, g[k]);
                }
        }
    }
    free(v);
    free(z);
    free(du);
    return failed;
}
