/* judge_rows.h - a whole round judged row by row where its logits lie: one body, compiled by nvcc for the GPU
 * and by the C compiler for its host path, whose results equal distribution() and judge() bit for bit.
 *
 * One group of JUDGE_THREADS threads takes a row. EACH(t) runs its block once per thread: on the device all
 * threads run it at once and meet behind it; on the host a loop does. Nothing that a thread writes inside a
 * block is read by another one in the same block, so both orders give the same numbers; sums whose order
 * matters run over the documented 16 lanes. */
#ifndef SPECC_JUDGE_ROWS_H
#define SPECC_JUDGE_ROWS_H
#include "core/numbers/row_math.h"

#define JUDGE_THREADS 512

/* Numbers of a call; every row shares them. Plain data: the host copies it to the device as it is. */
typedef struct judge_options {
  double temperature, top_p, min_p, repetition_penalty, presence_penalty, frequency_penalty;
  uint64_t seed;
  uint32_t sample;
  int32_t top_k, coupled;
  int32_t n_ids, n_logits;  /* ids that may be sampled; columns of the logits */
  int32_t n_bias, position; /* position of row 0's token */
  int32_t order_room;       /* places of `order`: a power of two >= n_ids */
} judge_options;

/* One row. edits: ids of the history, each once, with their count in the output. */
typedef struct judge_row {
  int32_t proposed;            /* the token to judge; -1: none, the target draws for itself */
  int32_t first_edit, n_edits; /* into edit_ids and edit_counts */
  int32_t n_banned;            /* so many of `banned` are masked */
} judge_row;

enum judge_status { JUDGE_OK = 0, JUDGE_NO_LOGITS = 1, JUDGE_INFINITE = 2, JUDGE_NOTHING_LEFT = 3 };
typedef struct judge_answer {
  int32_t status, accepted, token, reserved;
} judge_answer;

/* Every buffer of a call. p, spare, order, block and buckets hold one slice for each row. */
typedef struct judge_buffers {
  const float *logits; /* [rows][n_logits] */
  const double *q;     /* [rows][n_ids] what a proposed token was drawn from; NULL: one-hot everywhere */
  const judge_row *rows;
  const int32_t *edit_ids, *edit_counts;
  const int32_t *bias_ids;
  const double *bias_values;
  const int32_t *banned;
  double *p;             /* [rows][n_ids] out: the distribution */
  double *spare;         /* [rows][n_ids] scratch */
  int32_t *order;        /* [rows][order_room] scratch */
  double *block;         /* [rows][n_ids / 64 + 1] scratch */
  uint32_t *buckets;     /* [rows][BUCKETS] scratch */
  judge_answer *answers; /* [rows] out */
} judge_buffers;

/* What the threads of a row share; on the device in shared memory. */
typedef struct judge_shared {
  double lanes[16], value[JUDGE_THREADS], top, sum;
  int32_t id[JUDGE_THREADS], found, limit, keep, status, any, token;
} judge_shared;

#ifdef __CUDACC__
  #define JUDGE_BODY static __device__ inline
  #define EACH(t) for (int32_t t = (int32_t)threadIdx.x, once_ = 1; once_; once_ = 0, __syncthreads())
  #define ADD_ONE(place) atomicAdd(place, 1)
#else
  #define JUDGE_BODY static inline
  #define EACH(t) for (int32_t t = 0; t < JUDGE_THREADS; t++)
  #define ADD_ONE(place) ((*(place))++)
#endif
#define STRIDE(i, t, n) for (int32_t i = (t); i < (n); i += JUDGE_THREADS)

/* ------------------------------------------------------------------ sums, maxima, winners */
JUDGE_BODY double judge_total(judge_shared *s, const double *v, int32_t n) {
  EACH(t) {
    if (t < 16) {
      double lane = 0;
      for (int32_t i = t; i < n; i += 16) lane += v[i];
      s->lanes[t] = lane;
    }
  }
  EACH(t) if (t == 0) s->sum = join_lanes(s->lanes);
  return s->sum;
}

/* Halves the list of candidates (value, id) until one is left: the smallest value, the lower id on ties; id
 * -1: none. */
JUDGE_BODY void judge_least(judge_shared *s) {
  for (int32_t half = JUDGE_THREADS / 2; half; half /= 2) EACH(t) {
      if (t < half && s->id[t + half] >= 0) {
        double a = s->value[t], b = s->value[t + half];
        if (s->id[t] < 0 || b < a || (b == a && s->id[t + half] < s->id[t])) {
          s->value[t] = b;
          s->id[t] = s->id[t + half];
        }
      }
    }
}

JUDGE_BODY void judge_top(judge_shared *s, const double *v, int32_t n) {
  EACH(t) {
    s->id[t] = -1;
    s->value[t] = 0;
    STRIDE(i, t, n)
    if (s->id[t] < 0 || -v[i] < s->value[t]) {
      s->value[t] = -v[i];
      s->id[t] = i;
    }
  }
  judge_least(s);
  EACH(t) if (t == 0) {
    s->top = -s->value[0];
    s->token = s->id[0];
  }
}

/* ------------------------------------------------------------------ the distribution, as distribution.c
 * states it */
JUDGE_BODY void judge_adjust(judge_shared *s, const judge_options *o, const judge_buffers *b,
    const judge_row *r, const float *logits, double *v) {
  int32_t n = o->n_logits < o->n_ids ? o->n_logits : o->n_ids;
  EACH(t) if (t == 0) s->status = JUDGE_OK;
  EACH(t) {
    STRIDE(i, t, n) {
      v[i] = (double)logits[i];
      if (!is_logit(logits[i])) s->status = JUDGE_NO_LOGITS;
    }
    STRIDE(i, t, o->n_ids) if (i >= n) v[i] = -INFINITY;
  }
  EACH(t) STRIDE(i, t, r->n_edits) {
    int32_t at = r->first_edit + i, id = b->edit_ids[at];
    v[id] = penalised(
        v[id], b->edit_counts[at], o->repetition_penalty, o->presence_penalty, o->frequency_penalty);
  }
  EACH(t) STRIDE(i, t, o->n_bias) v[b->bias_ids[i]] += b->bias_values[i];
  EACH(t) STRIDE(i, t, r->n_banned) v[b->banned[i]] = -INFINITY;
  judge_top(s, v, o->n_ids);
  EACH(t)
  if (t == 0 && s->status == JUDGE_OK)
    s->status = s->top == INFINITY ? JUDGE_INFINITE : !(s->top > -INFINITY) ? JUDGE_NOTHING_LEFT : JUDGE_OK;
}

/* Lowest bucket that top_k or top_p may need. Mass is counted from each bucket's lower edge: too little,
 * never too much. */
JUDGE_BODY void judge_limit(
    judge_shared *s, const judge_options *o, const double *v, int32_t n, uint32_t *buckets) {
  double wanted = o->top_p < 1 ? o->top_p * judge_total(s, v, n) * (1 + 1e-9) : INFINITY;
  EACH(t) STRIDE(i, t, BUCKETS) buckets[i] = 0;
  EACH(t) STRIDE(i, t, n) ADD_ONE(&buckets[bucket_of(v[i])]);
  EACH(t) {
    if (t == 0) {
      double mass = 0;
      int32_t enough = o->top_k ? o->top_k : n, count = 0, limit = BUCKETS;
      while (limit > 0 && count < enough && (o->top_k || mass < wanted)) {
        limit--;
        count += (int32_t)buckets[limit];
        mass += buckets[limit] * of_bits((uint64_t)limit << 48);
      }
      s->limit = limit;
      s->found = 0;
    }
  }
}

/* Fills order with the candidates and, up to the next power of two, with -1. Their order is settled by the
 * sort. */
JUDGE_BODY int32_t judge_gather(judge_shared *s, const double *v, int32_t n, int32_t *order) {
  EACH(t) STRIDE(i, t, n) if ((int32_t)bucket_of(v[i]) >= s->limit && v[i] > 0) order[ADD_ONE(&s->found)] = i;
  int32_t found = s->found, size = 2;
  while (size < found) size *= 2;
  EACH(t) STRIDE(i, t, size) if (i >= found) order[i] = -1;
  return size;
}

JUDGE_BODY int judge_before(const double *v, int32_t a, int32_t b) {
  return b < 0 || (a >= 0 && before(v, a, b));
}

/* Bitonic: a total order, so any sort gives the same list. */
JUDGE_BODY void judge_sort(const double *v, int32_t *order, int32_t size) {
  for (int32_t run = 2; run <= size; run *= 2)
    for (int32_t gap = run / 2; gap; gap /= 2) EACH(t) STRIDE(pair, t, size / 2) {
        int32_t i = 2 * gap * (pair / gap) + pair % gap, j = i + gap, a = order[i], b = order[j];
        if ((i & run) == 0 ? judge_before(v, b, a) : judge_before(v, a, b)) {
          order[i] = b;
          order[j] = a;
        }
      }
}

JUDGE_BODY void judge_keep(double *v, int32_t n, const int32_t *order, const double *weights, int32_t keep) {
  EACH(t) STRIDE(i, t, n) v[i] = 0;
  EACH(t) STRIDE(i, t, keep) v[order[i]] = weights[i];
}

/* The prefix of top_p runs over the sorted weights, one after the other. */
JUDGE_BODY void judge_nucleus(
    judge_shared *s, const judge_options *o, const double *weights, double whole, int32_t keep) {
  EACH(t) {
    if (t == 0) {
      double wanted = o->top_p * whole, mass = 0;
      int32_t kept = 0;
      while (kept < keep && (kept == 0 || mass < wanted)) mass += weights[kept++];
      s->keep = kept;
    }
  }
}

JUDGE_BODY void judge_filter(
    judge_shared *s, const judge_options *o, double *v, double *weights, int32_t *order, uint32_t *buckets) {
  int32_t n = o->n_ids;
  judge_limit(s, o, v, n, buckets);
  int32_t size = judge_gather(s, v, n, order), found = s->found, keep = found;
  judge_sort(v, order, size);
  if (o->top_k && o->top_k < keep) keep = o->top_k;
  EACH(t) STRIDE(i, t, keep) weights[i] = v[order[i]];
  if (o->top_k) judge_keep(v, n, order, weights, keep);
  if (!(o->top_p < 1)) return;
  double whole = judge_total(s, v, n);
  judge_nucleus(s, o, weights, whole, keep);
  judge_keep(v, n, order, weights, s->keep);
}

JUDGE_BODY void judge_shape(
    judge_shared *s, const judge_options *o, double *v, double *spare, int32_t *order, uint32_t *buckets) {
  int32_t n = o->n_ids;
  if (o->temperature == 0) {
    int32_t token = s->token;
    EACH(t) STRIDE(i, t, n) v[i] = i == token;
    return;
  }
  double top = s->top;
  EACH(t) STRIDE(i, t, n) v[i] = weight_of(v[i], top, o->temperature);
  if ((o->top_k && o->top_k < n) || o->top_p < 1) judge_filter(s, o, v, spare, order, buckets);
  if (o->min_p > 0) EACH(t) STRIDE(i, t, n) v[i] = v[i] >= o->min_p ? v[i] : 0;
  double sum = judge_total(s, v, n);
  EACH(t) STRIDE(i, t, n) v[i] /= sum;
}

/* ------------------------------------------------------------------ draws, as sampling.c states them */
JUDGE_BODY int32_t judge_race(judge_shared *s, const judge_options *o, const double *p, int32_t position) {
  EACH(t) {
    s->id[t] = -1;
    s->value[t] = INFINITY;
    STRIDE(pair, t, (o->n_ids + 1) / 2) {
      int32_t first = 2 * pair, last = first + 1 < o->n_ids ? first + 1 : first;
      double u[2];
      if (!(p[first] > 0 || p[last] > 0)) continue;
      race_pair(o->seed, o->sample, position, 3, (uint32_t)pair, u);
      for (int32_t id = first; id <= last; id++) {
        double time = race_time(u[id - first], p[id]);
        if (time < s->value[t]) {
          s->value[t] = time;
          s->id[t] = id;
        }
      }
    }
  }
  judge_least(s);
  return s->id[0];
}

JUDGE_BODY int32_t judge_inverse(
    judge_shared *s, const judge_options *o, const double *weight, int32_t position, double *block) {
  EACH(t) STRIDE(i, t, (o->n_ids + 63) / 64) block[i] = sum_block(weight, o->n_ids, i);
  EACH(t)
  if (t == 0)
    s->token = search_blocks(weight, o->n_ids, uniform_at(o->seed, o->sample, position, 0, 0), block);
  return s->token;
}

JUDGE_BODY int32_t judge_draw(
    judge_shared *s, const judge_options *o, const double *p, int32_t position, double *block) {
  return o->coupled ? judge_race(s, o, p, position) : judge_inverse(s, o, p, position, block);
}

/* (p - q)+; q NULL is one-hot at x. Whether anything is left. */
JUDGE_BODY int32_t judge_residual(
    judge_shared *s, const double *p, const double *q, int32_t x, int32_t n, double *r) {
  EACH(t) if (t == 0) s->any = 0;
  EACH(t) STRIDE(i, t, n) {
    double d = q ? p[i] - q[i] : i == x ? 0 : p[i];
    r[i] = d > 0 ? d : 0;
    if (d > 0) s->any = 1;
  }
  return s->any;
}

/* The token of the row's slot; *accepted: it is the proposed one. */
JUDGE_BODY int32_t judge_token(judge_shared *s, const judge_options *o, const double *p, const double *q,
    int32_t x, int32_t position, double *spare, double *block, int32_t *accepted) {
  int32_t token = s->token; /* temperature 0: the argmax */
  *accepted = 0;
  if (o->temperature != 0 && x >= 0 && !o->coupled) {
    double u = uniform_at(o->seed, o->sample, position, 1, 0);
    *accepted = u * (q ? q[x] : 1.0) < p[x] || !judge_residual(s, p, q, x, o->n_ids, spare);
    return *accepted ? x : judge_inverse(s, o, spare, position, block);
  }
  if (o->temperature != 0) token = judge_draw(s, o, p, position, block);
  *accepted = token == x;
  return token;
}

/* ------------------------------------------------------------------ one row */
JUDGE_BODY void judge_one(judge_shared *s, const judge_options *o, const judge_buffers *b, int32_t row) {
  const judge_row *r = &b->rows[row];
  size_t at = (size_t)row, n = (size_t)o->n_ids;
  double *p = b->p + at * n, *spare = b->spare + at * n, *block = b->block + at * (n / 64 + 1);
  const double *q = b->q ? b->q + at * n : NULL;
  judge_answer answer = {0, 0, -1, 0};
  judge_adjust(s, o, b, r, b->logits + at * (size_t)o->n_logits, p);
  answer.status = s->status;
  if (answer.status == JUDGE_OK) {
    judge_shape(s, o, p, spare, b->order + at * (size_t)o->order_room, b->buckets + at * BUCKETS);
    answer.token = judge_token(s, o, p, q, r->proposed, o->position + row, spare, block, &answer.accepted);
  }
  EACH(t) if (t == 0) b->answers[row] = answer;
}
#endif
