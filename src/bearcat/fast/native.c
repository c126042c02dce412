/* The encoder's four convolution blocks on a CPU, forward and back, for a stack of runs (fast/native.py calls this).

   The plan is that of fast/kernels.py. Channels are the last axis, so rows t, t+1, t+2 of (time, channel) lie side by
   side and a convolution is a matrix product whose left rows overlap. Only raw convolution outputs y go to memory: a
   thread takes one window of one run at a time, and normalisation, ReLU and the maximum of pairs happen in scratch
   memory that stays in its cache. Statistics are summed window by window and then over windows in a fixed order, so
   that the result depends neither on the number of threads nor on the other runs of the stack.

   The last layer, most of the arithmetic, stores no y at all: its maxima are found while it is in the cache, and on the
   way back dy is zero but at the maxima, plus what normalisation spreads, which is affine in y and so in what the layer
   saw. */

#include <math.h>
#include <string.h>

typedef REAL real; /* float or double */

/* Vector registers, and how many of them a tile of outputs may fill. */
#ifdef __AVX512F__
enum { BYTES = 64, WIDE = 4 };
#else
enum { BYTES = 32, WIDE = 2 }; /* the compiler splits them where registers are shorter */
#endif
#define LANES (BYTES / (long)sizeof(real))
typedef real vector __attribute__((vector_size(BYTES), aligned(sizeof(real)), may_alias));

enum { LAYERS = 4, PARTS = 4, GROUP = 8, MOST = 128, PIECE = 96 };
enum { LAST = LAYERS - 1, INPUTS = 64, AROUND = 3 * INPUTS }; /* what the last layer sees: channels, and three rows of them */
static const long OUTPUTS[LAYERS] = {16, 32, 64, 128};
static const long TAPS[LAYERS] = {15, 3, 3, 3};

/* What fast/native.py hands over; (run, …) each unless said. Windows of a run: all domains, one behind the other. */
struct plan {
    long runs, windows, domains, channels, length, threads, batch_statistics, scratch_size;
    double momentum, epsilon;
    const real *input;                                  /* (window, channel, time) */
    const real *weight[LAYERS];                         /* (tap × input, output) */
    const real *turned[LAST];                           /* (tap backwards × output, input) */
    const real *bias[LAYERS], *gamma[LAYERS], *beta[LAYERS]; /* (output,) */
    real *running_mean[LAYERS], *running_var[LAYERS];   /* (output,) */
    real *y[LAST];                                      /* (window, time, output), without the bias */
    real *scale[LAYERS], *shift[LAYERS], *mean[LAYERS], *deviation[LAYERS]; /* (domain, output) */
    real *sums;                                         /* (window, 2, MOST) */
    real *pooled;                                       /* (window, output, part) */
    real *best;                                         /* as pooled: y of the last layer at its maxima */
    int *place;                                         /* as pooled: where they were */
    real *last_mean;                                    /* (window, INPUTS): mean of what the last layer saw */
    real *scratch;                                      /* (thread, scratch_size) */
    const real *gradient;                               /* of pooled */
    real *change[LAST];                                 /* dz, as y */
    real *coefficient[LAYERS];                          /* (domain, 2, output): dy = scale·dz + c₀ + c₁·(y − mean) */
    real *of_weight[LAYERS];                            /* (group, tap × input, output); last: (group, output, AROUND) */
    real *of_gamma[LAYERS], *of_beta[LAYERS];           /* (output,) */
    /* Of the last layer: */
    const real *centre;                                 /* (domain, INPUTS): taken off what it saw */
    const real *rows;                                   /* (output, AROUND): its weight */
    const real *offset;                                 /* (domain, tap, INPUTS) and */
    const real *composed;                               /* (domain, tap, AROUND, INPUTS): from three rows to dx of one */
    const real *within;                                 /* (domain, 5 × INPUTS, INPUTS): all taps of these at once */
    real *lags;                                         /* (group, INPUTS, AROUND): products of what it saw with itself */
};

static long inputs_of(const struct plan *p, int layer) { return layer ? OUTPUTS[layer - 1] : p->channels; }

/* Points a layer makes, and points it sees: two by two of what layer 2 made are one of layer 3's. */
static long time_in(const struct plan *p, int layer);
static long time_out(const struct plan *p, int layer) { return time_in(p, layer) - TAPS[layer] + 1; }
static long time_in(const struct plan *p, int layer) {
    if (layer == 0) return p->length;
    long made = time_out(p, layer - 1);
    return layer == 2 ? made / 2 : made;
}

/* --- products ------------------------------------------------------------------------------------------------------ */

/* rows × (vectors of outputs) of C = (C +) A·B, with A[m][k] at a + m·am + k·ak. Everything constant is known where it is
   inlined, so the sums stay in registers. */
static inline __attribute__((always_inline)) void tile(
    const int rows, const int wide, const long am, const long ak, long depth, const real *restrict a,
    const real *restrict b, long ldb, real *restrict c, long ldc, const int add) {
    vector sum[12][4];
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < wide; v++)
            sum[m][v] = (vector){0};
    for (long k = 0; k < depth; k++, a += ak, b += ldb) {
        vector right[4];
        for (int v = 0; v < wide; v++) right[v] = *(const vector *)(b + v * LANES);
        for (int m = 0; m < rows; m++)
            for (int v = 0; v < wide; v++) sum[m][v] += a[m * am] * right[v];
    }
    for (int m = 0; m < rows; m++)
        for (int v = 0; v < wide; v++) {
            vector *here = (vector *)(c + m * ldc + v * LANES);
            if (add) sum[m][v] += *here; /* not before: the shorter a sum, the less is rounded off */
            *here = sum[m][v];
        }
}

static inline __attribute__((always_inline)) void strip(
    const int rows, const int wide, const long am, const long ak, long height, long depth, const real *a, const real *b,
    long ldb, real *c, long ldc, const int add) {
    long m = 0;
    for (; m + rows <= height; m += rows) tile(rows, wide, am, ak, depth, a + m * am, b, ldb, c + m * ldc, ldc, add);
    if (m < height && height >= rows && !add) { /* the last rows once more, with those before them */
        m = height - rows;
        tile(rows, wide, am, ak, depth, a + m * am, b, ldb, c + m * ldc, ldc, add);
        return;
    }
    for (; rows > 4 && m + 4 <= height; m += 4) tile(4, wide, am, ak, depth, a + m * am, b, ldb, c + m * ldc, ldc, add);
    for (; m < height; m++) tile(1, wide, am, ak, depth, a + m * am, b, ldb, c + m * ldc, ldc, add);
}

/* C (height × width) = (C +) A·B; width is a multiple of 16. Rows of B begin ldb apart and may overlap. */
static inline __attribute__((always_inline)) void product(
    const long width, const long ldb, const long am, const long ak, long height, long depth, const real *a, const real *b,
    real *c, const int add) {
    const int wide = width / LANES < WIDE ? (int)(width / LANES) : WIDE;
    const int rows = wide > 2 ? 6 : WIDE > 2 ? 12 : 6;
    for (long n = 0; n < width; n += wide * LANES)
        strip(rows, wide, am, ak, height, depth, a, b + n, ldb, c + n, width, add);
}

/* The same with its strides known to the compiler: y (time × outputs) of z (time × inputs). */
static void convolve(int layer, long inputs, long time, const real *z, const real *weight, real *y) {
    long depth = TAPS[layer] * inputs;
    switch (layer) {
        case 0:
            if (inputs == 1) product(16, 16, 1, 1, time, depth, z, weight, y, 0);
            else product(16, 16, inputs, 1, time, depth, z, weight, y, 0);
            break;
        case 1: product(32, 32, 16, 1, time, depth, z, weight, y, 0); break;
        case 2: product(64, 64, 32, 1, time, depth, z, weight, y, 0); break;
        default: product(128, 128, 64, 1, time, depth, z, weight, y, 0);
    }
}

/* dx (time × inputs) of dy with two empty rows before and behind. */
static void convolve_back(int layer, long time, const real *dy, const real *turned, real *dx) {
    long depth = TAPS[layer] * OUTPUTS[layer];
    switch (layer) {
        case 1: product(16, 16, 32, 1, time, depth, dy, turned, dx, 0); break;
        default: product(32, 32, 64, 1, time, depth, dy, turned, dx, 0);
    }
}

/* dw (tap × inputs, outputs) += of z and dy. */
static void add_of_weight(int layer, long inputs, long time, const real *z, const real *dy, real *dw) {
    long height = TAPS[layer] * inputs;
    switch (layer) {
        case 0:
            if (inputs == 1) product(16, 16, 1, 1, height, time, z, dy, dw, 1);
            else product(16, 16, 1, inputs, height, time, z, dy, dw, 1);
            break;
        case 1: product(32, 32, 1, 16, height, time, z, dy, dw, 1); break;
        default: product(64, 64, 1, 32, height, time, z, dy, dw, 1);
    }
}

/* --- between the products -------------------------------------------------------------------------------------------- */

/* For every channel, several at once: what the loop reads and writes does not overlap. */
#define CHANNELS(c, count) _Pragma("omp simd") for (long c = 0; c < (count); c++)

static inline real rectified(real v) { return v < 0 ? 0 : v; } /* NaN stays NaN */

/* What a layer sees of one window, (time, inputs): the window itself, or y of the layer before, normalised, rectified and,
   before layer 3, the larger of two. */
static __attribute__((noinline)) void load(const struct plan *p, int layer, long at, long domain, real *restrict z) {
    long inputs = inputs_of(p, layer), time = time_in(p, layer);
    if (layer == 0) {
        const real *x = p->input + at * inputs * time;
        for (long c = 0; c < inputs; c++)
            for (long t = 0; t < time; t++) z[t * inputs + c] = x[c * time + t];
        return;
    }
    const real *restrict y = p->y[layer - 1] + at * time_out(p, layer - 1) * inputs;
    const real *restrict scale = p->scale[layer - 1] + domain * inputs, *restrict shift = p->shift[layer - 1] + domain * inputs;
    if (layer == 2) {
        for (long t = 0; t < time; t++, y += 2 * inputs, z += inputs)
            CHANNELS(c, inputs) {
                real one = y[c] * scale[c] + shift[c], other = y[inputs + c] * scale[c] + shift[c];
                z[c] = rectified(one < other ? other : one);
            }
    } else {
        for (long t = 0; t < time; t++, y += inputs, z += inputs)
            CHANNELS(c, inputs) z[c] = rectified(y[c] * scale[c] + shift[c]);
    }
}

/* Mean of each channel of y (time, channels). */
static __attribute__((noinline)) void average(const real *restrict y, long time, long channels, real *restrict mean) {
    memset(mean, 0, channels * sizeof(real));
    for (long t = 0; t < time; t++)
        CHANNELS(c, channels) mean[c] += y[t * channels + c];
    CHANNELS(c, channels) mean[c] /= (real)time;
}

/* The same and squared distances from it. */
static __attribute__((noinline)) void moments(const real *restrict y, long time, long channels, real *restrict sums) {
    real *restrict mean = sums, *restrict squares = sums + MOST;
    average(y, time, channels, mean);
    memset(squares, 0, channels * sizeof(real));
    for (long t = 0; t < time; t++)
        CHANNELS(c, channels) {
            real away = y[t * channels + c] - mean[c];
            squares[c] += away * away;
        }
}

/* Scale and shift of a layer's normalisation, from the windows' moments or from the running statistics. */
static void normalise(const struct plan *p, int layer) {
    long channels = OUTPUTS[layer], batch = p->windows / p->domains;
    double time = (double)time_out(p, layer);
    for (long run = 0; run < p->runs; run++)
        for (long domain = 0; domain < p->domains; domain++)
            for (long c = 0; c < channels; c++) {
                long here = run * channels + c, there = (run * p->domains + domain) * channels + c;
                double mean = p->running_mean[layer][here] - p->bias[layer][here], variance = p->running_var[layer][here];
                if (p->batch_statistics) {
                    const real *sums = p->sums + (run * p->windows + domain * batch) * 2 * MOST + c;
                    double squares = 0;
                    mean = 0;
                    for (long w = 0; w < batch; w++) mean += sums[w * 2 * MOST];
                    mean /= (double)batch;
                    for (long w = 0; w < batch; w++) {
                        double away = sums[w * 2 * MOST] - mean;
                        squares += sums[w * 2 * MOST + MOST] + time * away * away;
                    }
                    double number = time * (double)batch, step = p->momentum;
                    variance = squares / number;
                    double before = p->running_mean[layer][here], spread = p->running_var[layer][here];
                    p->running_mean[layer][here] = (real)(before + step * (mean + p->bias[layer][here] - before));
                    p->running_var[layer][here] = (real)(spread + step * (squares / (number - 1) - spread));
                }
                double deviation = 1 / sqrt(variance + p->epsilon), scale = p->gamma[layer][here] * deviation;
                p->mean[layer][there] = (real)mean;
                p->deviation[layer][there] = (real)deviation;
                p->scale[layer][there] = (real)scale;
                p->shift[layer][there] = (real)(p->beta[layer][here] - mean * scale);
            }
}

/* Where each of four parts of the last layer's y (time, channels) has its maximum once it is normalised, and y there.
   Only the sign of the scale matters, which is gamma's and known before the statistics are. */
static __attribute__((noinline)) void find_maxima(const struct plan *p, long at, const real *restrict y) {
    const long channels = MOST, time = time_out(p, LAST);
    const real *restrict gamma = p->gamma[LAST] + at / p->windows * channels;
    real sign[MOST], most[MOST];
    int where[MOST];
    CHANNELS(c, channels) sign[c] = (real)((gamma[c] > 0) - (gamma[c] < 0));
    for (long part = 0; part < PARTS; part++) {
        long first = part * time / PARTS, end = ((part + 1) * time + PARTS - 1) / PARTS;
        CHANNELS(c, channels) most[c] = sign[c] * y[first * channels + c], where[c] = (int)first;
        for (long t = first + 1; t < end; t++)
            CHANNELS(c, channels) {
                real v = sign[c] * y[t * channels + c], before = most[c];
                where[c] = v > before ? (int)t : where[c];
                most[c] = v > before ? v : before;
            }
        for (long c = 0; c < channels; c++) {
            p->best[(at * channels + c) * PARTS + part] = y[where[c] * channels + c];
            p->place[(at * channels + c) * PARTS + part] = where[c];
        }
    }
}

/* The maxima normalised and rectified. */
static void pool(const struct plan *p, long at, long domain) {
    for (long here = 0; here < MOST * PARTS; here++) {
        long c = domain * MOST + here / PARTS;
        p->pooled[at * MOST * PARTS + here] = rectified(p->best[at * MOST * PARTS + here] * p->scale[LAST][c] + p->shift[LAST][c]);
    }
}

static long domain_of(const struct plan *p, long at) { return at / (p->windows / p->domains); } /* of all runs */

extern int omp_get_thread_num(void);

void forward(const struct plan *p) {
    for (int layer = 0; layer < LAYERS; layer++) {
        long inputs = inputs_of(p, layer), outputs = OUTPUTS[layer], time = time_out(p, layer);
#pragma omp parallel for schedule(static) num_threads(p->threads)
        for (long at = 0; at < p->runs * p->windows; at++) {
            long domain = domain_of(p, at);
            real *z = p->scratch + omp_get_thread_num() * p->scratch_size;
            real *y = layer < LAST ? p->y[layer] + at * time * outputs : z + time_in(p, layer) * inputs;
            load(p, layer, at, domain, z);
            convolve(layer, inputs, time, z, p->weight[layer] + (at / p->windows) * TAPS[layer] * inputs * outputs, y);
            if (p->batch_statistics) moments(y, time, outputs, p->sums + at * 2 * MOST);
            if (layer < LAST) continue;
            average(z, time_in(p, layer), inputs, p->last_mean + at * INPUTS);
            find_maxima(p, at, y);
        }
        normalise(p, layer);
    }
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (long at = 0; at < p->runs * p->windows; at++) {
        pool(p, at, domain_of(p, at));
    }
}

/* --- back ------------------------------------------------------------------------------------------------------------ */

/* From the windows' sums of dz and of dz·x̂: gradients of gamma and beta, and dy = scale·dz + c₀ + c₁·(y − mean). */
static void normalise_back(const struct plan *p, int layer) {
    long channels = OUTPUTS[layer], batch = p->windows / p->domains;
    double time = (double)time_out(p, layer);
    for (long run = 0; run < p->runs; run++)
        for (long c = 0; c < channels; c++) {
            double of_beta = 0, of_gamma = 0;
            for (long domain = 0; domain < p->domains; domain++) {
                long there = (run * p->domains + domain) * channels + c;
                const real *sums = p->sums + (run * p->windows + domain * batch) * 2 * MOST + c;
                double first = 0, second = 0;
                for (long w = 0; w < batch; w++) {
                    first += sums[w * 2 * MOST];
                    second += sums[w * 2 * MOST + MOST];
                }
                double each = p->scale[layer][there] / (time * (double)batch);
                real *found = p->coefficient[layer] + (run * p->domains + domain) * 2 * channels + c;
                found[0] = (real)(-each * first);
                found[channels] = (real)(-each * second * p->deviation[layer][there]);
                of_beta += first;
                of_gamma += second;
            }
            p->of_beta[layer][run * channels + c] = (real)of_beta;
            p->of_gamma[layer][run * channels + c] = (real)of_gamma;
        }
}

/* Sums of dz and dz·x̂ in the last layer, where dz is not zero at the maxima only. */
static void sum_of_pooled(const struct plan *p, long at, long domain) {
    real *sums = p->sums + at * 2 * MOST;
    for (long c = 0; c < MOST; c++) {
        real first = 0, second = 0;
        for (long part = 0; part < PARTS; part++) {
            long here = (at * MOST + c) * PARTS + part;
            real dz = p->pooled[here] > 0 ? p->gradient[here] : 0;
            first += dz;
            second += dz * (p->best[here] - p->mean[LAST][domain * MOST + c]);
        }
        sums[c] = first;
        sums[MOST + c] = second * p->deviation[LAST][domain * MOST + c];
    }
}

/* dy of one window into dy (time, channels), in all layers but the last. */
static __attribute__((noinline)) void load_back(const struct plan *p, int layer, long at, long domain, real *restrict dy) {
    long channels = OUTPUTS[layer], time = time_out(p, layer);
    const real *restrict y = p->y[layer] + at * time * channels, *restrict scale = p->scale[layer] + domain * channels;
    const real *restrict c0 = p->coefficient[layer] + domain * 2 * channels, *restrict c1 = c0 + channels;
    const real *restrict mean = p->mean[layer] + domain * channels, *restrict dz = p->change[layer] + at * time * channels;
    for (long t = 0; t < time; t++, y += channels, dz += channels, dy += channels)
        CHANNELS(c, channels) dy[c] = scale[c] * dz[c] + c0[c] + c1[c] * (y[c] - mean[c]);
}

static inline void add_around(real *restrict to, const real *restrict from, real times) {
    CHANNELS(c, AROUND) to[c] += times * from[c];
}

/* The last layer's way back for one window: dx (time, INPUTS) of what it saw, z, which is centred here; its part of the
   weights' gradient is added, that of the maxima to dw and products of z with itself to lags. dx of a row comes from up
   to three rows of dy, and each of them from three of z. */
static void back_of_last(const struct plan *p, long at, long domain, real *restrict z, real *restrict dx, real *restrict dw,
                         real *restrict lags) {
    const long time = time_out(p, LAST);
    const real *centre = p->centre + domain * INPUTS, *offset = p->offset + domain * AROUND;
    const real *composed = p->composed + domain * 3 * AROUND * INPUTS, *rows = p->rows + at / p->windows * MOST * AROUND;
    for (long t = 0; t < time + 2; t++)
        CHANNELS(c, INPUTS) z[t * INPUTS + c] -= centre[c];
    for (long t = 0; t < time; t += PIECE) { /* rows that fit into the nearest cache, and short sums */
        long depth = time - t < PIECE ? time - t : PIECE;
        product(AROUND, INPUTS, 1, INPUTS, INPUTS, depth, z + t * INPUTS, z + t * INPUTS, lags, 1);
    }
    for (long t = 2; t < time; t++)
        CHANNELS(c, INPUTS) dx[t * INPUTS + c] = offset[c] + offset[INPUTS + c] + offset[2 * INPUTS + c];
    product(INPUTS, INPUTS, INPUTS, 1, time - 2, 5 * INPUTS, z, p->within + domain * 5 * INPUTS * INPUTS, dx + 2 * INPUTS, 1);
    for (long side = 0; side < 4; side++) { /* the first and last two rows, which not every tap reaches */
        long row = side < 2 ? side : time - 2 + side;
        memset(dx + row * INPUTS, 0, INPUTS * sizeof(real));
        for (long tap = 0; tap < 3; tap++) {
            if (row < tap || row - tap >= time) continue;
            CHANNELS(c, INPUTS) dx[row * INPUTS + c] += offset[tap * INPUTS + c];
            product(INPUTS, INPUTS, INPUTS, 1, 1, AROUND, z + (row - tap) * INPUTS, composed + tap * AROUND * INPUTS, dx + row * INPUTS, 1);
        }
    }
    for (long here = 0; here < MOST * PARTS; here++) {
        long maximum = at * MOST * PARTS + here, c = here / PARTS, row = p->place[maximum] * INPUTS;
        if (!(p->pooled[maximum] > 0)) continue;
        real dy = p->scale[LAST][domain * MOST + c] * p->gradient[maximum];
        add_around(dw + c * AROUND, z + row, dy);
        add_around(dx + row, rows + c * AROUND, dy);
    }
}

/* dz of the layer before from dx of this one's input, through pairs and ReLU, and its two sums. */
static __attribute__((noinline)) void store_back(const struct plan *p, int layer, long at, long domain, const real *restrict dx) {
    long channels = inputs_of(p, layer), time = time_in(p, layer), made = time_out(p, layer - 1);
    const real *restrict y = p->y[layer - 1] + at * made * channels;
    const real *restrict scale = p->scale[layer - 1] + domain * channels, *restrict shift = p->shift[layer - 1] + domain * channels;
    const real *restrict mean = p->mean[layer - 1] + domain * channels;
    const real *restrict deviation = p->deviation[layer - 1] + domain * channels;
    real *restrict dz = p->change[layer - 1] + at * made * channels;
    real *restrict first = p->sums + at * 2 * MOST, *restrict second = first + MOST;
    memset(first, 0, channels * sizeof(real));
    memset(second, 0, channels * sizeof(real));
    if (layer == 2) {
        for (long t = 0; t < time; t++)
            CHANNELS(c, channels) {
                real one = y[2 * t * channels + c], other = y[(2 * t + 1) * channels + c], got = dx[t * channels + c];
                real z1 = one * scale[c] + shift[c], z2 = other * scale[c] + shift[c];
                real to_one = z1 >= z2 ? got : 0, to_other = z1 >= z2 ? 0 : got;
                to_one = z1 > 0 ? to_one : 0;
                to_other = z2 > 0 ? to_other : 0;
                dz[2 * t * channels + c] = to_one;
                dz[(2 * t + 1) * channels + c] = to_other;
                first[c] += to_one + to_other;
                second[c] += to_one * (one - mean[c]) + to_other * (other - mean[c]);
            }
        memset(dz + 2 * time * channels, 0, (made - 2 * time) * channels * sizeof(real));
    } else {
        for (long t = 0; t < time; t++)
            CHANNELS(c, channels) {
                real v = y[t * channels + c], got = v * scale[c] + shift[c] > 0 ? dx[t * channels + c] : 0;
                dz[t * channels + c] = got;
                first[c] += got;
                second[c] += got * (v - mean[c]);
            }
    }
    CHANNELS(c, channels) second[c] *= deviation[c];
}

/* The last layer's coefficients, from which fast/native.py makes offset, composed and within. */
void begin_backward(const struct plan *p) {
#pragma omp parallel for schedule(static) num_threads(p->threads)
    for (long at = 0; at < p->runs * p->windows; at++) {
        sum_of_pooled(p, at, domain_of(p, at));
    }
    normalise_back(p, LAST);
}

void backward(const struct plan *p) {
    long batch = p->windows / p->domains, groups = (batch + GROUP - 1) / GROUP;
    for (int layer = LAST; layer >= 0; layer--) {
        long inputs = inputs_of(p, layer), outputs = OUTPUTS[layer], time = time_out(p, layer), before = time_in(p, layer);
        long around = (TAPS[layer] - 1) * outputs, size = TAPS[layer] * inputs * outputs;
        if (layer < LAST) normalise_back(p, layer);
#pragma omp parallel for schedule(static) num_threads(p->threads)
        for (long group = 0; group < p->runs * p->domains * groups; group++) { /* windows of a domain, summed in one place */
            long domain = group / groups, run = domain / p->domains, first = (group % groups) * GROUP, end = first + GROUP;
            real *z = p->scratch + omp_get_thread_num() * p->scratch_size, *dy = z + before * inputs;
            real *dx = dy + time * outputs + 2 * around, *dw = p->of_weight[layer] + group * size;
            real *lags = p->lags + group * INPUTS * AROUND;
            if (end > batch) end = batch;
            memset(dw, 0, size * sizeof(real));
            if (layer == LAST) memset(lags, 0, INPUTS * AROUND * sizeof(real));
            memset(dy, 0, around * sizeof(real));
            memset(dy + around + time * outputs, 0, around * sizeof(real));
            for (long window = first; window < end; window++) {
                long at = domain * batch + window;
                load(p, layer, at, domain, z);
                if (layer == LAST) {
                    back_of_last(p, at, domain, z, dx, dw, lags);
                } else {
                    load_back(p, layer, at, domain, dy + around);
                    add_of_weight(layer, inputs, time, z, dy + around, dw);
                    if (layer > 0) convolve_back(layer, before, dy, p->turned[layer] + run * size, dx);
                }
                if (layer > 0) store_back(p, layer, at, domain, dx);
            }
        }
    }
}

/* Small matrices (count, height, depth)·(count, depth, width), width a multiple of 64. Torch's own product may give other
   last digits for another number of threads or of matrices; this one does not. */
void multiply(const real *a, const real *b, real *c, long count, long height, long depth, long width, long threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (long one = 0; one < count; one++)
        for (long n = 0; n < width; n += WIDE * LANES)
            strip(6, WIDE, depth, 1, height, depth, a + one * height * depth, b + one * depth * width + n, width,
                  c + one * height * width + n, width, 0);
}

/* --- ReLU and dropout ------------------------------------------------------------------------------------------------ */

static inline unsigned mixed(unsigned value) { /* as fast.stacked.mixed */
    value ^= value >> 16;
    value *= 0x7FEB352Du;
    value ^= value >> 15;
    value *= 0x846CA68Bu;
    return value ^ value >> 16;
}

/* values (run, size); kept units are scaled, the others 0. `now` (run,) is the draw, `layer` and `limit` as in stacked.dropout. */
void rectified_dropout(
    const real *restrict values, real *restrict out, const long *now, long runs, long size, long layer, long limit,
    double scale, long threads) {
#pragma omp parallel for collapse(2) schedule(static) num_threads(threads)
    for (long run = 0; run < runs; run++)
        for (long block = 0; block < (size + 1023) / 1024; block++) {
            unsigned key = (unsigned)now[run] ^ (unsigned)layer, least = (unsigned)limit;
            long end = (block + 1) * 1024 < size ? (block + 1) * 1024 : size;
            for (long unit = block * 1024; unit < end; unit++) {
                unsigned bits = mixed(mixed((unsigned)unit * 0x9E3779B1u + 0x165667B1u) ^ key);
                real v = rectified(values[run * size + unit]);
                out[run * size + unit] = bits >= least ? v * (real)scale : v * 0;
            }
        }
}
