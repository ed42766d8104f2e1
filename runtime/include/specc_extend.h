/* specc_extend.h - engines and drafters of your own, and models put together from them.
 *
 * Read specc.h first: its rules for errors, threads and memory hold here too. The order is that of use:
 * describe an engine (specc_backend), give it to a drafter (specc_drafter) or a model (specc_model_create).
 *
 * Functions that fill a specc_backend or a specc_drafter leave it to be freed by whoever takes it over: the
 * drafter or model that copies it, or, if that call fails, the caller by its `release`.
 */
#ifndef SPECC_EXTEND_H
#define SPECC_EXTEND_H
#include "specc.h"
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain declarations only: the Python binding parses this part; SPECC_API is removed first) */

/* Records the sentence for specc_last_error and returns code; for your own backends and drafters. */
SPECC_API int specc_fail(int code, const char *message);

/* ------------------------------------------------------------------ backends
 * One engine: weights and graphs, shared by its caches. A cache: the keys and values of one sequence and the
 * buffers of its calls, bound once. The only mutable state of a cache is a length that the caller keeps: row
 * i of a call is at slot past_len + i, sees slots 0..past_len + i, and whatever lies behind is never read;
 * rollback is a lower length. run(): the caller has filled input_ids[rows], position[rows],
 * logit_rows[n_logits] and past_len; it returns after logits[n_logits][vocab] is written. past_len + rows <=
 * capacity holds always. Caches of one engine may run at once. */
typedef struct specc_io { /* buffers of one cache, owned by the backend, fixed for the cache's life */
  int64_t *input_ids;     /* [widest] token ids */
  int64_t *position;      /* [widest] absolute positions, clamped to the context for padding rows */
  int64_t *logit_rows;    /* [widest] rows whose logits are wanted */
  int32_t *past_len;      /* [1] entries that count, before the call */
  float *logits;          /* [widest][vocab] */
  /* [widest][hidden] final normalised hidden state of every row; NULL where the engine gives none */
  float *hidden;
  /* [widest][hidden_in] input of draft heads that read a target's hidden states; NULL elsewhere */
  float *hidden_in;
} specc_io;

/* A round to judge where its logits are: row i decides the slot of proposed[i], the last row the one behind
 * them. */
typedef struct specc_round {
  const specc_options *options;
  const int32_t *history;  /* [n_history] committed ids, the first n_prompt of them the prompt */
  const int32_t *proposed; /* [n_proposed] n_proposed = rows - 1 */
  const double *const *q;  /* [n_proposed] rows [n_ids], NULL for one-hot; NULL altogether: all one-hot */
  const int32_t *banned;   /* [n_banned] ids that rows 0..banned_rows-1 may not give */
  uint64_t seed;
  uint32_t sample;
  /* position: of row 0's token */
  int32_t rule, position, n_ids, rows, n_proposed, n_history, n_prompt, n_banned, banned_rows;
} specc_round;

typedef struct specc_backend {
  const char *name;    /* "table", "ort", or yours */
  const char *version; /* of the engine library; certificates are bound to it */
  int32_t vocab;       /* columns of logits */
  int32_t capacity;    /* cache slots: context + widest row count */
  int32_t hidden;      /* columns of io.hidden, 0 for none */
  int32_t n_widths;
  int32_t widths[SPECC_MAX_WIDTHS]; /* row counts of run(), rising; the widest one is the prefill chunk */
  void *self;
  int (*open)(void *self, void **cache, specc_io *io);
  int (*run)(void *cache, int32_t rows, int32_t n_logits);
  int (*poison)(void *cache, int32_t from, float value); /* overwrite slots >= from; used by the gate only */
  void (*close)(void *cache);
  void (*release)(void *self); /* may be NULL; called by specc_model_free */
  /* what certificates are bound to: a GPU's name, and the SHA-256 of it and its driver; NULL: the CPU */
  const char *device;
  const char *fingerprint;
  /* NULL, or judges the rows of the last run() where they are: accepted [rows], token [rows], bit for bit as
   * specc_judge_rows. run() with n_logits 0 leaves the rows' logits on the device for it.
   * SPECC_E_UNSUPPORTED: not these options, take the logits. */
  int (*judge)(void *cache, const specc_round *round, int32_t *accepted, int32_t *token);
} specc_backend;

/* ONNX Runtime, loaded at run time. */
#define SPECC_MAX_PROVIDER_OPTIONS 24
#define SPECC_CACHE_F32 0
#define SPECC_CACHE_F16 1
#define SPECC_CACHE_BF16 2
#define SPECC_CACHE_F8 3 /* float8 e4m3, scale 1; TensorRT engines that give their rows */
typedef struct specc_ort_options {
  const char *model;   /* path of an ONNX file with specc's graph signature */
  const char *library; /* path of libonnxruntime, NULL for the loader's own search */
  /* threads: intra-op, 0 for the number of cores. The cache is layers x 2 x cache_type [1, kv_heads,
   * capacity, head_dim]. layers 0: a draft head without a cache, whose one input is `hidden` f32 [1,
   * hidden_in] and whose one output is `logits` f32 [the only width, vocab]. */
  int32_t threads, vocab, layers, kv_heads, head_dim, capacity, n_widths;
  int32_t widths[SPECC_MAX_WIDTHS];
  int32_t hidden; /* columns of an output `hidden` f32 [rows, hidden], 0 for a graph without one */
  /* columns of an input `hidden` f32 [rows, hidden_in]; the output is called `hidden_next` then */
  int32_t hidden_in;
  /* input_ids are below it; 0: below vocab. A draft head with a reduced vocabulary reads more ids than it
   * gives */
  int32_t n_ids;
  /* 1: another engine runs between the calls of this one, whose threads then leave the cores to it at once */
  int32_t shares_cores;
  int32_t cache_type; /* SPECC_CACHE_ */
  int32_t gpu;        /* number of the GPU, with a provider: caches then lie in its memory */
  int32_t n_provider_options;
  /* NULL: the CPU. "CUDAExecutionProvider": ONNX Runtime's own; "NvTensorRTRTXExecutionProvider" and others:
   * the plugin in provider_library. */
  const char *provider;
  const char *provider_library;
  const char *provider_keys[SPECC_MAX_PROVIDER_OPTIONS]; /* [n_provider_options] passed on as they are */
  const char *provider_values[SPECC_MAX_PROVIDER_OPTIONS];
} specc_ort_options;
/* Loads the library and the weights. SPECC_E_ARGUMENT, SPECC_E_MEMORY, SPECC_E_IO, SPECC_E_FORMAT (another
 * graph signature), SPECC_E_ENGINE (no library, too old, or it refuses the model). */
SPECC_API int specc_ort_backend(const specc_ort_options *options, specc_backend *backend);

/* An NVIDIA GPU, seen through its driver, which is loaded at run time. */
typedef struct specc_gpu {
  char name[128];       /* "Orin", "NVIDIA H200" */
  char fingerprint[65]; /* SHA-256 of name, SM and driver: certificates are bound to it */
  int32_t sm;           /* 87 for compute capability 8.7 */
  int32_t cuda;         /* CUDA version that the driver supports, 12060 for 12.6 */
  int32_t integrated;   /* 1: CPU and GPU share one memory (Jetson) */
  int32_t processors;   /* multiprocessors */
  int64_t memory;       /* bytes in all */
  /* bytes that an engine may take now, a reserve left; from MemAvailable where memory is shared */
  int64_t available;
  int64_t driver_free; /* bytes that the driver calls free */
} specc_gpu;
/* GPU number `index`. SPECC_E_ARGUMENT; SPECC_E_ENGINE: no driver, a driver too old, no such GPU. */
SPECC_API int specc_gpu_info(int32_t index, specc_gpu *gpu);

/* A finished TensorRT engine (plan), of TensorRT or of TensorRT for RTX, run without plugins. What it was
 * built for is compared before the library sees a byte of it: platform, SM, TensorRT version, size, text
 * instead of an engine. Rows whose logits are wanted are always as many as the call's rows; one optimization
 * profile per width, in their order. In place: present_x and past_x are one buffer (TensorRT writes there and
 * nowhere else); otherwise the engine gives rows_k.i, rows_v.i of the call, and the backend writes them
 * behind past_len. */
typedef struct specc_tensorrt_options {
  const char *plan;    /* path of the engine */
  const char *library; /* path of libnvinfer or libtensorrt_rtx; NULL: the loader's own search */
  /* of the library that built the plan: "10.3.0.30"; major, minor and patch must be the same */
  const char *version;
  const char *platform; /* "linux-x86_64", "linux-aarch64" */
  int32_t rtx;          /* 1: TensorRT for RTX */
  int32_t sm;           /* 87 for compute capability 8.7 */
  int32_t gpu;          /* number of the GPU */
  int32_t cache_type;   /* SPECC_CACHE_ */
  int32_t rows_out;     /* 1: the engine gives the call's keys and values, the backend writes the cache */
  int32_t hidden;       /* columns of an output `hidden` f32 [rows, hidden], 0 for none */
  int32_t vocab, layers, kv_heads, head_dim, capacity, n_widths;
  int32_t widths[SPECC_MAX_WIDTHS];
} specc_tensorrt_options;
/* SPECC_E_ARGUMENT, SPECC_E_MEMORY, SPECC_E_IO, SPECC_E_FORMAT (built for another device or version),
 * SPECC_E_ENGINE; SPECC_E_UNSUPPORTED: this library was compiled without TensorRT's headers. */
SPECC_API int specc_tensorrt_backend(const specc_tensorrt_options *options, specc_backend *backend);
/* The headers that this library was compiled with: "TensorRT 10.3", "TensorRT for RTX 1.7", or NULL. */
SPECC_API const char *specc_tensorrt_headers(void);
/* "10.3.0.30" of a libnvinfer or libtensorrt_rtx into version [n_version]; path NULL: the loader's own
 * search. SPECC_E_ARGUMENT, SPECC_E_ENGINE. */
SPECC_API int specc_tensorrt_version(const char *path, int32_t rtx, char *version, size_t n_version);

/* ------------------------------------------------------------------ drafters
 * A drafter proposes a chain of nodes (parent[i] == i - 1; trees are refused until they have a rule of their
 * own). Once drawn, judged: every token drawn from q is returned. Masks go into q before the draw; a stop
 * inside a round may look at tokens drawn so far and at the next q before drawing from it, and at nothing
 * else. */
typedef struct specc_sampler specc_sampler;

/* A reduced draft vocabulary: column c of a draft's logits and of its q means target id ids[c]. q is zero
 * elsewhere. */
typedef struct specc_draft_map {
  int32_t n, n_ids;      /* columns; ids of the target */
  const int32_t *ids;    /* [n] strictly rising, within 0..n_ids-1 */
  const int32_t *column; /* [n_ids] the inverse, -1 for an id without a column */
} specc_draft_map;
/* Copies ids [n]. SPECC_E_ARGUMENT, SPECC_E_MEMORY; SPECC_E_FORMAT unless they rise strictly within
 * 0..n_ids-1. Free it after the sessions that use it. */
SPECC_API int specc_draft_map_create(const int32_t *ids, int32_t n, int32_t n_ids, specc_draft_map **map);
/* From a file draft_ids.bin: "SPCI", u32 1, u32 n, i32 ids[n]. As above, and SPECC_E_IO. */
SPECC_API int specc_draft_map_read(const char *path, int32_t n_ids, specc_draft_map **map);
/* NULL is fine. */
SPECC_API void specc_draft_map_free(specc_draft_map *map);

typedef struct specc_draft_context {
  const int32_t *tokens; /* [n_tokens] committed ids, prompt first; the last one is not in any cache yet */
  int32_t n_tokens;
  int32_t n_prompt;
  int32_t k;     /* propose at most so many */
  int32_t n_ids; /* ids 0..n_ids-1 may be proposed */
  int32_t rule;
  uint64_t seed;
  uint32_t sample;
  uint32_t reserved;
  specc_sampler *sampler; /* for specc_draft_draw */
  double *q[SPECC_MAX_K]; /* [k] buffers [n_ids] of the session that a drafter may keep its q in */
  /* [n_tokens - 1][n_hidden] the target's hidden states; NULL unless the drafter wants them */
  const float *hidden;
  int32_t n_hidden;
  int32_t reserved2;
} specc_draft_context;

typedef struct specc_proposal {
  int32_t n;      /* out: nodes, 0..k */
  int32_t calls;  /* out: draft engine calls made for it */
  int32_t length; /* out: entries of the draft's own cache before it, -1 if it has none */
  int32_t reserved;
  int32_t parent[SPECC_MAX_K]; /* out */
  int32_t token[SPECC_MAX_K];  /* out */
  /* out: [n_ids] the very buffer that token[i] was drawn from, or NULL for one-hot; valid until the next
   * propose */
  const double *q[SPECC_MAX_K];
  /* out: q[i] is [map[i]->n] over these ids; NULL: over all. NULL before propose is called */
  const specc_draft_map *map[SPECC_MAX_K];
} specc_proposal;

typedef struct specc_drafter {
  const char *name;
  void *self;
  int (*open)(void *self, void **state); /* one state per session */
  int (*propose)(void *state, const specc_draft_context *context, specc_proposal *out);
  /* the first n_keep committed ids still hold; roll back what lies behind */
  int (*commit)(void *state, int32_t n_keep);
  void (*close)(void *state);
  void (*release)(void *self); /* may be NULL; called by specc_model_free */
  /* A drafter that can join a chain of stages: appends node `depth` (out->n, the nodes before it may be
   * another stage's) or leaves out->n as it is. Tokens drawn so far are behind the committed ones, at
   * tokens[n_tokens .. n_tokens + depth - 1]. May be NULL: the drafter then works alone. */
  int (*next)(void *state, const specc_draft_context *context, int32_t depth, specc_proposal *out);
  int32_t hidden; /* columns of the target's hidden states that it reads, 0 for none */
  int32_t reserved;
} specc_drafter;

/* ------------------------------------------------------------------ what a drafter calls inside propose()
 * All four give SPECC_E_ARGUMENT for a depth outside 0..SPECC_MAX_K-1. */

/* Shapes logits [n_logits] f32 by the request's options, as the target's rows are, with the tokens already
 * proposed in this round as history; writes q [n_ids] f64 (sums to 1) and draws node `depth` (0-based) from
 * it by the request's rule. SPECC_E_NUMERICS. */
SPECC_API int specc_draft_draw(
    specc_sampler *sampler, const float *logits, int32_t n_logits, int32_t depth, double *q, int32_t *token);
/* Its first half, for a stop between them and for a reduced vocabulary (map NULL: none; q [map->n], n_logits
 * the same). top: the largest probability of the row, at temperature 0 as at temperature 1; NULL if it does
 * not matter. SPECC_E_NUMERICS. */
SPECC_API int specc_draft_shape(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, double *top);
/* Its second half: draws *token from q. SPECC_E_NUMERICS. */
SPECC_API int specc_draft_pick(
    specc_sampler *sampler, const specc_draft_map *map, int32_t depth, const double *q, int32_t *token);
/* Node `depth` is one-hot at token. SPECC_E_DRAFT for an id out of range. */
SPECC_API int specc_draft_put(specc_sampler *sampler, int32_t depth, int32_t token);
/* 1 if node `depth` from this source (0 to 63, the drafter's own grouping; those of our drafters are in
 * core/session/control.h) is worth its row and `calls` more calls of the draft's engine, by the certificate's
 * costs and by what was accepted from the source in committed text; 0: leave it. Ask before drawing; a node
 * that is then proposed counts for its source. */
SPECC_API int specc_draft_pays(specc_sampler *sampler, int32_t depth, int32_t source, int32_t calls);

/* ------------------------------------------------------------------ drafters of the library
 * All of them give SPECC_E_ARGUMENT and SPECC_E_MEMORY. */

/* Prompt lookup: proposes what followed the longest earlier match of min_match to max_match tokens. q
 * is one-hot. */
SPECC_API int specc_ngram_drafter(int32_t min_match, int32_t max_match, specc_drafter *drafter);
/* Lookup in a static n-gram table of the target's own answers (format: core/draft/draft_table.c), one-hot q.
 * n_ids: of the tokenizer, as the table says too; min_count: how often the context must have been seen. Maps
 * the file. SPECC_E_IO, SPECC_E_FORMAT. */
SPECC_API int specc_table_drafter(const char *path, int32_t n_ids, int32_t min_count, specc_drafter *drafter);
/* A draft model with a cache of its own; copies *engine and frees it. */
SPECC_API int specc_model_drafter(const specc_backend *engine, specc_drafter *drafter);

typedef struct specc_head_options { /* a trained head over the target's hidden states */
  const specc_backend *engine;      /* copied; freed with the drafter */
  const specc_draft_map *map;       /* its reduced vocabulary, NULL for none; freed with the drafter */
  double stop;                      /* [0, 1): no node whose q has a smaller largest probability; 0 off */
  int32_t hidden;                   /* columns of the target's hidden states */
  int32_t reserved;
} specc_head_options;
/* A decoder layer over (token, the target's hidden state of the position before it), its own cache (EAGLE: Li
 * et al. 2024). Its engine reads io.hidden_in and gives io.hidden, the feature that its own next step reads.
 * SPECC_E_FORMAT: engine and options disagree. */
SPECC_API int specc_feature_drafter(const specc_head_options *options, specc_drafter *drafter);
/* Parallel heads over one hidden state, drafted as a chain (Medusa: Cai et al. 2024). Its engine has one
 * width, the number of heads, reads one row of io.hidden_in and gives a row of logits for each head.
 * SPECC_E_FORMAT: engine and options disagree. */
SPECC_API int specc_medusa_drafter(const specc_head_options *options, specc_drafter *drafter);
/* A chain of 1 to 8 drafters, asked in order at each depth; the first that answers proposes the node. Copies
 * and frees them. */
SPECC_API int specc_staged_drafter(const specc_drafter *stages, int32_t n_stages, specc_drafter *drafter);

typedef struct specc_hierarchy_options {
  const specc_backend *middle; /* the model that drafts for the target; copied, freed with the drafter */
  /* drafts for the middle model: lookup, a table, a model, or a chain of them; copied, freed likewise */
  const specc_drafter *small;
  int32_t n_ids; /* ids that may be sampled, as the target's */
  int32_t k;     /* 1 to 15: tokens that the small draft proposes to the middle model at a time */
} specc_hierarchy_options;
/* A small draft speeds up a middle model; all that the middle model emits goes to the target with the middle
 * model's own q (why this is exact: core/draft/draft_hierarchy.c). It cannot be a stage of a chain. */
SPECC_API int specc_hierarchy_drafter(const specc_hierarchy_options *options, specc_drafter *drafter);

/* ------------------------------------------------------------------ models without a bundle */
typedef struct specc_model_parts {
  const specc_backend *target;  /* copied; released with the model */
  const specc_drafter *drafter; /* copied; NULL for none */
  /* ids that may be sampled; further logits are masked, an id without a logit is never drawn */
  int32_t n_ids;
  int32_t context; /* most tokens of prompt and output together */
  int32_t k_max;
  int32_t n_eos;
  const int32_t *eos; /* [n_eos] copied */
  /* text of id i is bytes[offsets[i]] .. bytes[offsets[i + 1]]; NULL: no text; copied */
  const uint8_t *bytes;
  const uint32_t *offsets;     /* [n_ids + 1] */
  int32_t assume_exact;        /* 1: the caller knows that rows do not depend on the width (tables do not) */
  int32_t strip_leading_space; /* 1: the text's first space is dropped (SentencePiece) */
} specc_model_parts;
/* Takes the parts over if it succeeds. Speculation is off until the model is certified (specc_judge.h),
 * unless assume_exact says otherwise. SPECC_E_ARGUMENT, SPECC_E_MEMORY. */
SPECC_API int specc_model_create(const specc_model_parts *parts, specc_model **model);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
