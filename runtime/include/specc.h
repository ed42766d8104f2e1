/* specc.h - exact speculative sampling on a bundle, or on engines of your own.
 *
 * This header is the manual. A program needs libspecc.so, an engine library (ONNX Runtime) and a bundle:
 *
 *     specc_model *model; specc_session *session; specc_event event;
 *     specc_open_options open = { .folder = "smollm2-135m-cpu", .engine_library = "libonnxruntime.so.1" };
 *     if (specc_model_open(&open, &model)) die(specc_last_error());
 *     if (specc_session_create(model, &session)) die(specc_last_error());
 *     specc_request request; specc_request_default(&request);
 *     request.options.temperature = 0.8; request.max_new_tokens = 128;
 *     if (specc_session_start(session, &request, prompt_ids, n_prompt)) die(specc_last_error());
 *     do { if (specc_session_step(session, &event)) die(specc_last_error());
 *          fwrite(event.text, 1, event.n_text, stdout); } while (!event.finished);
 *     specc_session_free(session); specc_model_free(model);
 *
 * Words. K: tokens proposed in a round. p, q: target and draft distribution of one position after all
 * sampling options. Round: propose K tokens, verify K+1 rows in one target call, accept a prefix, emit one
 * more token, commit. Width: rows in one target call. Width class: widths whose rows agree bit for bit. Law:
 * what row i of the deployed target samples from at the law's width. Certificate: what was measured for one
 * engine on one device.
 *
 * The law is kept by one of two rules. `rejection`: Leviathan, Kalman, Matias, "Fast inference from
 * transformers via speculative decoding" (2023), algorithm 1; Chen et al., "Accelerating large language model
 * decoding with speculative sampling" (2023). `coupled`: the target's draw is an exponential race
 * (Gumbel-max) whose noise depends only on (seed, position, token, sample), and a drafted token is accepted
 * exactly when it equals that draw.
 *
 * Errors. Every function that returns int gives SPECC_OK (0) or a SPECC_E_ code; specc_last_error() then
 * holds one sentence for the calling thread. The library never aborts, exits, prints, or throws. After an
 * error a session may be started again; nothing of the failed call was committed beyond what events have
 * already reported.
 *
 * Threads. A model is read-only once open and may serve many sessions from many threads. A session belongs to
 * one thread at a time: a second one is answered SPECC_E_BUSY. specc_session_cancel may be called from any
 * thread.
 *
 * Memory. Sizes are in bytes unless a name says otherwise. Pointers handed out stay the library's and live as
 * long as their comment says. The token loop allocates nothing: every buffer is laid out by
 * specc_session_create.
 */
#ifndef SPECC_H
#define SPECC_H
#include <stddef.h>
#include <stdint.h>
#if defined(__GNUC__)
  #define SPECC_API __attribute__((visibility("default")))
#else
  #define SPECC_API
#endif
#ifdef __cplusplus
extern "C" {
#endif

/* cffi: begin (plain declarations only: the Python face parses this part; SPECC_API is removed first) */

#define SPECC_VERSION 100   /* major * 10000 + minor * 100 + patch */
#define SPECC_FORMAT 1      /* newest bundle format this library reads */
#define SPECC_MAX_K 16      /* most tokens proposed in a round */
#define SPECC_MAX_WIDTHS 24 /* most row counts that one engine lists */

/* ------------------------------------------------------------------ errors */
enum specc_status {
  SPECC_OK = 0,
  SPECC_E_ARGUMENT = 1, /* a value that no request may have; the caller's mistake */
  SPECC_E_CAPACITY = 2, /* the prompt does not fit the context */
  SPECC_E_MEMORY = 3,
  SPECC_E_IO = 4,          /* a file cannot be read or written */
  SPECC_E_FORMAT = 5,      /* a file is not what its manifest says, or of a newer format */
  SPECC_E_ENGINE = 6,      /* the engine library is missing, too old, or a call of it failed */
  SPECC_E_NUMERICS = 7,    /* NaN or +infinity in the logits, or no token left after masking */
  SPECC_E_DRAFT = 8,       /* a drafter broke its contract; sessions go on without it */
  SPECC_E_BUSY = 9,        /* the session is in use by another thread */
  SPECC_E_UNSUPPORTED = 10 /* an option that this path cannot honour, refused by name */
};
SPECC_API const char *specc_last_error(
    void); /* one sentence for this thread; valid until its next failing call */
SPECC_API int specc_fail(int code,
    const char *message); /* for your own backends and drafters: records the sentence, returns code */
SPECC_API int specc_version(void);
SPECC_API size_t specc_sizeof(
    const char *name); /* size of a public struct by name, 0 if unknown; checks a binding's layout */

/* ------------------------------------------------------------------ sampling
 * Order, the same for draft and target and for accepted, replacement and bonus slots: repetition, presence
 * and frequency penalty; logit bias; temperature; top_k; top_p; min_p. Ties keep the lower id, at least one
 * token always survives. Anything outside the ranges below is SPECC_E_ARGUMENT. */
typedef struct specc_options {
  double temperature; /* >= 0, finite; exactly 0 is argmax (lowest id on ties), anything above samples */
  double top_p; /* (0, 1]: a token stays while the mass before it, in falling order, is < top_p; 1 off */
  double min_p; /* [0, 1]: a token stays if its probability >= min_p times the largest; 0 off */
  double repetition_penalty; /* > 0: ids of prompt and output; logit / r if positive, * r if not; 1 off */
  double presence_penalty;   /* finite: subtracted once for an id that stands in the output; 0 off */
  double frequency_penalty;  /* finite: subtracted per occurrence in the output; 0 off */
  int32_t top_k;             /* >= 0: so many most probable ids stay; 0 off */
  int32_t n_bias;
  const int32_t *bias_ids;   /* [n_bias] ids in range, each once; copied by specc_session_start */
  const double *bias_values; /* [n_bias] added to the logits; -INFINITY bans, NaN and +INFINITY are refused */
} specc_options;

enum specc_rule { SPECC_RULE_REJECTION = 0, SPECC_RULE_COUPLED = 1 };

typedef struct specc_request {
  specc_options options;
  int32_t rule;           /* enum specc_rule; at temperature 0 both are exact argmax */
  int32_t speculation;    /* 1: on where the certificate allows it, 0: off with reason `requested` */
  int32_t k;              /* 1..K_max of the bundle; 0: the certificate's choice */
  int32_t max_new_tokens; /* >= 0 */
  int32_t
      min_new_tokens; /* >= 0: end tokens are banned until so many tokens are out (a mask before the draw) */
  int32_t ignore_eos; /* 1: end tokens are ordinary tokens */
  int32_t seeded;     /* 0: a fresh seed from the system, reported by specc_session_seed */
  uint32_t sample;    /* sample or fork number: n samples of one seed are independent */
  uint64_t seed;
  const char *const
      *stop; /* [n_stop] UTF-8 strings; text ends before the first, ids with the token that completes it */
  int32_t n_stop;   /* <= 16, each of 1 to 256 bytes */
  int32_t reserved; /* 0 */
} specc_request;
SPECC_API void specc_request_default(
    specc_request *request); /* temperature 1, no filter, rejection, speculation on, 256 tokens */

/* ------------------------------------------------------------------ backends
 * One engine: weights and graphs, shared by its caches. A cache: the keys and values of one sequence and the
 * buffers of its calls, bound once. The only mutable state of a cache is a length that the caller keeps: row
 * i of a call stands at slot past_len + i, sees slots 0..past_len + i, and whatever lies behind is never
 * read; rollback is a lower length. run(): the caller has filled input_ids[rows], position[rows],
 * logit_rows[n_logits] and past_len; it returns after logits[n_logits][vocab] is written. past_len + rows <=
 * capacity holds always. Caches of one engine may run at once. */
typedef struct specc_io { /* buffers of one cache, owned by the backend, fixed for the cache's life */
  int64_t *input_ids;     /* [widest] token ids */
  int64_t *position;      /* [widest] absolute positions, clamped to the context for padding rows */
  int64_t *logit_rows;    /* [widest] rows whose logits are wanted */
  int32_t *past_len;      /* [1] entries that count, before the call */
  float *logits;          /* [widest][vocab] */
  float *hidden; /* [widest][hidden] final normalised hidden state of every row; NULL where the engine gives
                    none */
  float *hidden_in; /* [widest][hidden_in] an input of heads that read a target's hidden states; NULL
                       elsewhere */
} specc_io;

/* A round to judge where its logits are: row i decides the slot of proposed[i], the last row the one behind
 * them. */
typedef struct specc_judging {
  const specc_options *options;
  const int32_t *history;  /* [n_history] committed ids, the first n_prompt of them the prompt */
  const int32_t *proposed; /* [n_proposed] n_proposed = rows - 1 */
  const double *const *q;  /* [n_proposed] rows [n_ids], NULL for one-hot; NULL altogether: all one-hot */
  const int32_t *banned;   /* [n_banned] ids that rows 0..banned_rows-1 may not give */
  uint64_t seed;
  uint32_t sample;
  int32_t rule, position, n_ids, rows, n_proposed, n_history, n_prompt, n_banned,
      banned_rows; /* position: of row 0's token */
} specc_judging;

typedef struct specc_backend {
  const char *name;    /* "table", "ort", or yours */
  const char *version; /* of the engine library; certificates are bound to it */
  int32_t vocab;       /* columns of logits */
  int32_t capacity;    /* cache slots: context + widest row count */
  int32_t hidden;      /* columns of io.hidden, 0 for none */
  int32_t n_widths;
  int32_t widths[24]; /* row counts that run() takes, rising; the widest one is the prefill chunk */
  void *self;
  int (*open)(void *self, void **cache, specc_io *io);
  int (*run)(void *cache, int32_t rows, int32_t n_logits);
  int (*poison)(void *cache, int32_t from, float value); /* overwrite slots >= from; used by the gate only */
  void (*close)(void *cache);
  void (*release)(void *self); /* may be NULL; called by specc_model_free */
  const char *device; /* what certificates are bound to: a GPU's name and the SHA-256 of it and its driver;
                         NULL: the CPU */
  const char *fingerprint;
  /* NULL, or judges the rows of the last run() where they are: stands [rows], token [rows], bit for bit as
   * specc_judge_rows. run() with n_logits 0 leaves the rows' logits on the device for it.
   * SPECC_E_UNSUPPORTED: not these options, take the logits. */
  int (*judge)(void *cache, const specc_judging *judging, int32_t *stands, int32_t *token);
} specc_backend;

/* A Markov table with exactly known laws: the logits after token b are table[b], or table[a * n + b] for the
 * last two tokens a, b (order 2, a = 0 before the first), a being read from the cache, so that a wrong length
 * or a stale entry shows. table: [n^order][vocab] f32, copied. n = number of ids the table knows, n <= vocab.
 */
SPECC_API int specc_table_backend(const float *table, int32_t n, int32_t vocab, int32_t order,
    int32_t capacity, const int32_t *widths, int32_t n_widths, specc_backend *backend);
/* Gives a table engine an output `hidden` [n]: 1 at the row's own id. reads 1: it reads such rows too, as a
 * feature head does, and takes its token a from there instead of from the cache (order 2). */
SPECC_API int specc_table_hidden(specc_backend *table, int32_t reads);
/* Parallel heads as tables: row h of a call is table[h * n + id of the hidden state]. table: [heads *
 * n][vocab] f32, copied. */
SPECC_API int specc_table_heads(
    const float *table, int32_t n, int32_t vocab, int32_t heads, specc_backend *backend);

/* ONNX Runtime, loaded at run time. model: path of an ONNX file with specc's graph signature; library: path
 * of libonnxruntime, NULL for the loader's own search; threads: intra-op threads, 0 for the number of cores.
 * layers, kv_heads, head_dim: the cache is layers x 2 x cache_type [1, kv_heads, capacity, head_dim].
 * hidden: columns of an output `hidden` f32 [rows, hidden], 0 for a graph without one; hidden_in: columns of
 * an input `hidden` f32 [rows, hidden_in], whose graph then calls its output `hidden_next`. layers 0: a head
 * without a cache, whose one input is `hidden` f32 [1, hidden_in] and whose one output is `logits` f32 [the
 * only width, vocab]. provider NULL: the CPU. "CUDAExecutionProvider": ONNX Runtime's own;
 * "NvTensorRTRTXExecutionProvider" and others: the plugin in provider_library. With one the caches lie in the
 * memory of GPU `gpu`, bound once, and only ids and logits cross. */
#define SPECC_MAX_PROVIDER_OPTIONS 24
#define SPECC_CACHE_F32 0
#define SPECC_CACHE_F16 1
#define SPECC_CACHE_BF16 2
#define SPECC_CACHE_F8 3 /* float8 e4m3, scale 1; TensorRT engines that give their rows */
typedef struct specc_ort_options {
  const char *model;
  const char *library;
  int32_t threads, vocab, layers, kv_heads, head_dim, capacity, n_widths;
  int32_t widths[24];
  int32_t hidden, hidden_in;
  int32_t n_ids; /* input_ids are below it; 0: below vocab. A head with a reduced vocabulary reads more ids
                    than it gives */
  int32_t takes_turns; /* 1: another engine runs between the calls of this one, whose threads then leave the
                          cores to it at once */
  int32_t cache_type;  /* SPECC_CACHE_ */
  int32_t gpu, n_provider_options;
  const char *provider;
  const char *provider_library;
  const char *provider_keys[24]; /* [n_provider_options] passed on as they are */
  const char *provider_values[24];
} specc_ort_options;
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
  int64_t available;   /* bytes that an engine may take now, a reserve left; from MemAvailable where memory is
                          shared */
  int64_t driver_free; /* bytes that the driver calls free */
} specc_gpu;
SPECC_API int specc_gpu_info(
    int32_t index, specc_gpu *gpu); /* SPECC_E_ENGINE: no driver, a driver too old, no such GPU */

/* A finished TensorRT engine (plan), of TensorRT or of TensorRT for RTX, run without plugins. What it was
 * built for is compared before the library sees a byte of it: platform, SM, TensorRT version, size, text
 * instead of an engine. Rows whose logits are wanted are always as many as the call's rows; one optimization
 * profile per width, in their order. In place: present_x and past_x are one buffer (TensorRT writes there and
 * nowhere else); otherwise the engine gives rows_k.i, rows_v.i of the call, and the backend writes them
 * behind past_len. A library compiled without TensorRT's headers answers SPECC_E_UNSUPPORTED. */
typedef struct specc_tensorrt_options {
  const char *plan;    /* path of the engine */
  const char *library; /* path of libnvinfer or libtensorrt_rtx; NULL: the loader's own search */
  const char
      *version; /* of the library that built the plan: "10.3.0.30"; major, minor and patch must be the same */
  const char *platform; /* "linux-x86_64", "linux-aarch64" */
  int32_t rtx;          /* 1: TensorRT for RTX */
  int32_t sm;           /* 87 for compute capability 8.7 */
  int32_t gpu;          /* number of the GPU */
  int32_t cache_type;   /* SPECC_CACHE_ */
  int32_t rows_out;     /* 1: the engine gives the call's keys and values, the backend writes the cache */
  int32_t hidden;       /* columns of an output `hidden` f32 [rows, hidden], 0 for none */
  int32_t vocab, layers, kv_heads, head_dim, capacity, n_widths;
  int32_t widths[24];
} specc_tensorrt_options;
SPECC_API int specc_tensorrt_backend(const specc_tensorrt_options *options, specc_backend *backend);
/* Whether this library was compiled with TensorRT's headers: "TensorRT 10.3", "TensorRT for RTX 1.7", or
 * NULL. */
SPECC_API const char *specc_tensorrt_headers(void);
/* "10.3.0.30" of a libnvinfer or libtensorrt_rtx; path NULL: the loader's own search. */
SPECC_API int specc_tensorrt_version(const char *path, int32_t rtx, char *version, size_t n_version);

/* ------------------------------------------------------------------ drafters
 * A drafter proposes a chain of nodes (parent[i] == i - 1; trees are refused until they have a rule of their
 * own). Once drawn, judged: every token drawn from q is returned. Masks go into q before the draw; a stop
 * inside a round may look at tokens drawn so far and at the next q before drawing from it, at nothing else.
 */
typedef struct specc_sampler specc_sampler;

/* A reduced draft vocabulary: column c of a draft's logits and of its q means target id ids[c]. q is zero
 * elsewhere. */
typedef struct specc_draft_map {
  int32_t n, n_ids;      /* columns; ids of the target */
  const int32_t *ids;    /* [n] strictly rising, within 0..n_ids-1 */
  const int32_t *column; /* [n_ids] the inverse, -1 for an id without a column */
} specc_draft_map;
/* Copies ids; SPECC_E_FORMAT unless they rise strictly within 0..n_ids-1. Free it after the sessions that use
 * it. */
SPECC_API int specc_draft_map_create(const int32_t *ids, int32_t n, int32_t n_ids, specc_draft_map **map);
SPECC_API int specc_draft_map_read(const char *path, int32_t n_ids,
    specc_draft_map **map); /* draft_ids.bin: "SPCI", u32 1, u32 n, i32 ids[n] */
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
  double *q[16];          /* [k] buffers [n_ids] of the session that a drafter may keep its q in */
  const float
      *hidden; /* [n_tokens - 1][n_hidden] the target's hidden states; NULL unless the drafter wants them */
  int32_t n_hidden;
  int32_t reserved2;
} specc_draft_context;

typedef struct specc_proposal {
  int32_t n;      /* out: nodes, 0..k */
  int32_t calls;  /* out: draft engine calls made for it */
  int32_t length; /* out: entries of the draft's own cache before it, -1 if it has none */
  int32_t reserved;
  int32_t parent[16];  /* out */
  int32_t token[16];   /* out */
  const double *q[16]; /* out: [n_ids] the very buffer token[i] was drawn from, or NULL for one-hot;
                                      valid until the next propose */
  const specc_draft_map
      *map[16]; /* out: q[i] is [map[i]->n] over these ids; NULL: over all. NULL before propose is called */
} specc_proposal;

typedef struct specc_drafter {
  const char *name;
  void *self;
  int (*open)(void *self, void **state); /* one state per session */
  int (*propose)(void *state, const specc_draft_context *context, specc_proposal *out);
  int (*commit)(void *state,
      int32_t n_keep); /* the first n_keep committed ids still hold; roll back what lies behind */
  void (*close)(void *state);
  void (*release)(void *self); /* may be NULL; called by specc_model_free */
  /* A drafter that can join a chain of stages: appends node `depth` (out->n, the nodes before it may be
   * another stage's) or leaves out->n as it is. Tokens drawn so far stand behind the committed ones, at
   * tokens[n_tokens .. n_tokens + depth - 1]. May be NULL: the drafter then stands alone. */
  int (*next)(void *state, const specc_draft_context *context, int32_t depth, specc_proposal *out);
  int32_t hidden; /* columns of the target's hidden states that it reads, 0 for none */
  int32_t reserved;
} specc_drafter;

/* Shapes logits [n_logits] f32 by the request's options, as the target's rows are, with the tokens already
 * proposed in this round as history; writes q [n_ids] f64 (sums to 1) and draws node `depth` (0-based) from
 * it by the request's rule. */
SPECC_API int specc_draft_draw(
    specc_sampler *sampler, const float *logits, int32_t n_logits, int32_t depth, double *q, int32_t *token);
/* Its two halves, for a stop between them and for a reduced vocabulary (map NULL: none; q [map->n], n_logits
 * the same). top: the largest probability of the row, at temperature 0 as at temperature 1; NULL if it does
 * not matter. */
SPECC_API int specc_draft_shape(specc_sampler *sampler, const float *logits, int32_t n_logits,
    const specc_draft_map *map, int32_t depth, double *q, double *top);
SPECC_API int specc_draft_pick(
    specc_sampler *sampler, const specc_draft_map *map, int32_t depth, const double *q, int32_t *token);
SPECC_API int specc_draft_put(
    specc_sampler *sampler, int32_t depth, int32_t token); /* node `depth` is one-hot at token */

/* 1 if node `depth` from this source (0 to 63, the drafter's own grouping; those of our drafters are in
 * core/control.h) is worth its row and `calls` more calls of the draft's engine, by the certificate's costs
 * and by what was accepted from the source in committed text; 0: leave it. Ask before drawing; a node that is
 * then proposed counts for its source. */
SPECC_API int specc_draft_pays(specc_sampler *sampler, int32_t depth, int32_t source, int32_t calls);

SPECC_API int specc_ngram_drafter(
    int32_t min_match, int32_t max_match, specc_drafter *drafter); /* prompt lookup, one-hot q */
/* Lookup in a static n-gram table of the target's own answers (the format is told in core/draft_table.c),
 * one-hot q. n_ids: of the tokenizer, as the table says too; min_count: how often the context must have been
 * seen. Maps the file. */
SPECC_API int specc_table_drafter(const char *path, int32_t n_ids, int32_t min_count, specc_drafter *drafter);
SPECC_API int specc_model_drafter(
    const specc_backend *engine, specc_drafter *drafter); /* own cache; copies *engine and frees it */

typedef struct specc_head_options { /* a trained head over the target's hidden states */
  const specc_backend *engine;      /* copied; freed with the drafter */
  const specc_draft_map *map;       /* its reduced vocabulary, NULL for none; freed with the drafter */
  double stop;                      /* [0, 1): no node whose q has a smaller largest probability; 0 off */
  int32_t hidden;                   /* columns of the target's hidden states */
  int32_t reserved;
} specc_head_options;
/* A decoder layer over (token, the target's hidden state of the position before it), its own cache (EAGLE: Li
 * et al. 2024). Its engine reads io.hidden_in and gives io.hidden, the feature that its own next step reads.
 */
SPECC_API int specc_feature_drafter(const specc_head_options *options, specc_drafter *drafter);
/* Parallel heads over one hidden state, drafted as a chain (Medusa: Cai et al. 2024). Its engine has one
 * width, the number of heads, reads one row of io.hidden_in and gives a row of logits for each head. */
SPECC_API int specc_medusa_drafter(const specc_head_options *options, specc_drafter *drafter);
/* A chain of 1 to 8 drafters, asked in order at each depth; the first that answers proposes the node. Copies
 * and frees them. */
SPECC_API int specc_staged_drafter(const specc_drafter *stages, int32_t n_stages, specc_drafter *drafter);

typedef struct specc_hierarchy_options {
  const specc_backend *middle; /* the model that drafts for the target; copied, freed with the drafter */
  const specc_drafter *small;  /* drafts for the middle model: lookup, a table, a model, or a chain of them;
                                  copied, freed likewise */
  int32_t n_ids;               /* ids that may be sampled, as the target's */
  int32_t k; /* 1 to 15: tokens that the small draft proposes to the middle model at a time */
} specc_hierarchy_options;
/* A small draft speeds up a middle model; all that the middle model emits goes to the target with the middle
 * model's own q (why this is exact: core/draft_hierarchy.c). It cannot be a stage of a chain. */
SPECC_API int specc_hierarchy_drafter(const specc_hierarchy_options *options, specc_drafter *drafter);

/* ------------------------------------------------------------------ certificates
 * Reasons why speculation is off, as bits. */
#define SPECC_R_REQUESTED 1
#define SPECC_R_NUMERICS 2
#define SPECC_R_UNCERTIFIED_DEVICE 4
#define SPECC_R_LINT 8
#define SPECC_R_NO_GAIN 16
#define SPECC_R_OPTION_UNSUPPORTED 32
#define SPECC_R_VOCABULARY_MISMATCH 64
#define SPECC_R_CAPACITY 128
#define SPECC_R_DRAFT_ERROR 256
SPECC_API const char *specc_reason_name(uint32_t bit); /* "numerics"; NULL for no such bit */

enum specc_certificate_kind { SPECC_CERT_NONE = 0, SPECC_CERT_BOUNDED = 1, SPECC_CERT_BIT_EXACT = 2 };

typedef struct specc_certificate {
  int32_t kind;      /* enum specc_certificate_kind, of the widths that the runtime uses */
  int32_t law_width; /* plain decoding runs at this width */
  int32_t n_widths;
  int32_t widths[24];      /* as the engine lists them */
  int32_t width_class[24]; /* class number of each width; -1: its own rows disagree with each other */
  int32_t threads;
  int32_t k;        /* K that pays best on this device, 0 unknown */
  uint32_t reasons; /* SPECC_R_ bits that the judge gives; 0: speculation may be on */
  double tv_mean; /* upper bound (empirical Bernstein, 99.9 %) of the mean total variation between rows of one
                     position, after the sampling options that were asked for, of any two widths up to K_max +
                     1 rows */
  double tv_max;  /* largest one observed */
  double max_abs_diff[24]; /* largest logit difference of a width from the law width */
  double call_ms[24];      /* median milliseconds of a call */
  double draft_ms; /* median milliseconds of one proposal of K tokens; 0 until the gate has measured it */
  double draft_call_ms; /* of one call of the draft's engine; 0 without one, or not measured */
  int64_t rows_compared;
  int64_t rows_different[24]; /* rows of a width that differ from the law width */
  int64_t calls;
  uint64_t law_hash; /* of all rows at the law width: equal for two thread counts that agree bit for bit */
  int64_t tv_rows;   /* positions behind tv_mean and flips; 0 where no width differs, or none was asked for */
  int64_t flips;     /* of those, whose most probable id is another one */
  double flip_margin; /* largest lead of the first id over the second among them, in the reference's logits */
  int64_t unrepeatable; /* calls that gave other bits when they were repeated as they were: such an engine is
                           never certified */
  char evidence[200];   /* the gravest thing seen, in words; widths of another class are told and no fault; ""
                           for nothing */
} specc_certificate;

typedef struct specc_certify_options {
  const int32_t *tokens; /* [n_tokens] calibration ids; windows of them are replayed */
  int32_t n_tokens;
  int32_t window; /* positions per window, 0 for the default */
  uint64_t seed;
  int (*progress)(
      void *user, int64_t done, int64_t total); /* may be NULL; non-zero cancels with SPECC_E_BUSY */
  void *user;
  const specc_options *options; /* sampling options under which rows that differ are compared; NULL:
                                   temperature 1, no filter */
  int32_t bounded_rows;         /* positions that are compared where rows differ, 0 for the default */
  int32_t bounded; /* 1: they are compared even if the widths that a session needs agree bit for bit */
} specc_certify_options;

typedef struct specc_model specc_model;
typedef struct specc_session specc_session;

/* Measures the model's target: every width, every slot, other later rows, poisoned stale cache, repeats,
 * fresh caches, rollbacks, at the start of the context, at block edges, in the middle and near its end. Does
 * not change the model. */
SPECC_API int specc_certify(
    specc_model *model, const specc_certify_options *options, specc_certificate *certificate);
/* Why the certificate file at `path` is in force for this model on this device, or why not: one sentence into
 * note [n_note]. 1: it fits. */
SPECC_API int specc_certificate_note(const specc_model *model, const char *path, char *note, size_t n_note);
/* Puts a certificate in force for sessions created afterwards. */
SPECC_API int specc_model_certify(specc_model *model, const specc_certificate *certificate);
/* Writes it atomically as folder/<device>-<threads>.json, bound to the model's engine hash, backend and
 * version, CPU and threads. report: a JSON object of further findings to keep beside it, or NULL. path
 * [n_path] receives the file's path. */
SPECC_API int specc_certificate_save(specc_model *model, const specc_certificate *certificate,
    const char *report, const char *folder, char *path, size_t n_path);
/* Instructions that the CPU operators use here: "scalar", "avx2", "avx-vnni", "avx512-vnni", "neon-dotprod";
 * the fastest that this CPU has and that gave the scalar code's bits when it was tried. SPECC_KERNELS in the
 * environment names another one. */
SPECC_API const char *specc_kernels(void);
SPECC_API int specc_device(char *name, size_t n_name, char *fingerprint,
    size_t n_fingerprint); /* CPU model; SHA-256 of model and flags */

/* ------------------------------------------------------------------ models */
typedef struct specc_open_options {
  const char *folder;           /* the bundle */
  const char *engine_library;   /* path of libonnxruntime, NULL for the loader's own search */
  const char *certificates;     /* a further folder with certificates, NULL for none */
  int32_t threads;              /* 0: as the bundle's plan says */
  int32_t trust;                /* 1: sizes are checked, hashes are not */
  const char *tensorrt_library; /* path of libnvinfer or libtensorrt_rtx, NULL for the loader's own search */
  const char *provider_library; /* a plugin provider of ONNX Runtime that the manifest names, NULL for none */
} specc_open_options;
SPECC_API int specc_model_open(const specc_open_options *options, specc_model **model);

typedef struct specc_model_parts { /* a model from engines of your own, without a bundle */
  const specc_backend *target;     /* copied; released with the model */
  const specc_drafter *drafter;    /* copied; NULL for none */
  int32_t
      n_ids; /* ids that may be sampled; further logits are masked, an id without a logit is never drawn */
  int32_t context; /* most tokens of prompt and output together */
  int32_t k_max;
  int32_t n_eos;
  const int32_t *eos; /* [n_eos] copied */
  const uint8_t
      *bytes; /* text of id i is bytes[offsets[i]] .. bytes[offsets[i + 1]]; NULL: no text; copied */
  const uint32_t *offsets;     /* [n_ids + 1] */
  int32_t assume_exact;        /* 1: the caller knows that rows do not depend on the width (tables do not) */
  int32_t strip_leading_space; /* 1: the text's first space is dropped (SentencePiece) */
} specc_model_parts;
SPECC_API int specc_model_create(const specc_model_parts *parts, specc_model **model);
SPECC_API void specc_model_free(specc_model *model); /* NULL is fine; sessions must be freed before */

typedef struct specc_model_info {
  int32_t n_ids, vocab, context, capacity, k_max, chunk, threads, n_eos;
  int32_t enabled;  /* 1: speculation is on for requests that ask for it */
  uint32_t reasons; /* SPECC_R_ bits, 0 when enabled */
  const char *backend, *backend_version, *drafter, *engine_sha256,
      *digest;                   /* live as long as the model; "" if none */
  const char *device;            /* what computes: a GPU's or the CPU's name; certificates are bound to it */
  const char *fingerprint;       /* SHA-256 of what identifies that device, as certificates hold it */
  const int32_t *eos;            /* [n_eos] */
  specc_certificate certificate; /* the one in force; kind NONE if none fits this device */
} specc_model_info;
SPECC_API int specc_model_info_get(const specc_model *model, specc_model_info *info);

/* ------------------------------------------------------------------ sessions */
enum specc_finish {
  SPECC_RUNNING = 0,
  SPECC_FINISH_STOP = 1,
  SPECC_FINISH_LENGTH = 2,
  SPECC_FINISH_CANCELLED = 3
};

typedef struct specc_event { /* what one step did; pointers live until the next call on the session */
  int32_t finished;          /* enum specc_finish */
  int32_t prefill;           /* 1: a prompt chunk was read; 0: a round */
  int32_t proposed;          /* nodes put to the target */
  int32_t accepted;          /* of those, before end token, stop string or max_new_tokens cut the round */
  int32_t n_tokens;          /* ids committed by this step */
  int32_t n_text; /* bytes of whole UTF-8 that may be shown: held back while a stop string may be forming */
  const int32_t *tokens;
  const char *text;
  const int32_t *drafted; /* [proposed] */
} specc_event;

typedef struct specc_stats {
  int64_t target_calls, draft_calls, prefill_calls, rounds, rounds_proposing;
  int64_t proposed, accepted, emitted;
  int64_t accepted_length[17];                   /* rounds by accepted length; only rounds that proposed */
  double seconds, target_seconds, draft_seconds; /* decoding only: prefill is apart */
  double prefill_seconds;
  uint32_t reasons; /* why speculation was off in this request, 0 if it was on */
  int32_t enabled;
  int32_t target_length; /* target cache entries that count, now */
  int32_t draft_length;  /* draft cache entries before the last proposal, -1 without such a cache */
  int32_t finished;      /* enum specc_finish */
  int32_t reserved;
  int64_t rounds_paused; /* rounds that proposed nothing because proposals had not paid */
} specc_stats;

SPECC_API int specc_session_create(specc_model *model, specc_session **session);
SPECC_API void specc_session_free(specc_session *session); /* NULL is fine */
/* Begins a generation: checks the request and the prompt, calls no engine. ids [n] must be 1..context-1 many,
 * in range. What the cache still holds of an earlier generation is kept where that is exact (shared prefix,
 * prefill width in the law's class). */
SPECC_API int specc_session_start(
    specc_session *session, const specc_request *request, const int32_t *ids, int32_t n);
SPECC_API int specc_session_step(
    specc_session *session, specc_event *event); /* one prompt chunk or one round */
/* Steps until finished; on_event may be NULL, non-zero from it cancels. */
SPECC_API int specc_session_run(
    specc_session *session, int (*on_event)(void *user, const specc_event *event), void *user);
SPECC_API void specc_session_cancel(
    specc_session *session); /* any thread; takes effect within one engine call */
/* The next two are for the thread that steps the session, between steps. */
SPECC_API const int32_t *specc_session_tokens(
    const specc_session *session, int32_t *n_prompt, int32_t *n_tokens); /* prompt and output */
SPECC_API uint64_t specc_session_seed(const specc_session *session);
SPECC_API int specc_session_stats(const specc_session *session, specc_stats *stats);

/* One judged slot of a round, for records that can be judged again (`specc run --record`). */
typedef struct specc_decision {
  int32_t position; /* of the emitted token among prompt and output */
  int32_t drafted;  /* the proposed id; -1: none (plain decoding, or the bonus) */
  int32_t
      emitted; /* the id that stands there before end token, stop string or max_new_tokens cut the round */
  int32_t accepted;            /* 1: the proposed id stands */
  double p_drafted, q_drafted; /* of the proposed id; 0 without one; one-hot at temperature 0 */
  double p_emitted;
  double
      u; /* accepted when u * q < p; -1 where no such number decides (coupled, temperature 0, no proposal) */
  double draw; /* the number that drew the emitted id from p or from (p - q)+; -1 where none did */
  const double
      *q; /* [n_ids] what the proposed id was drawn from, NULL for one-hot; lives until the next step */
} specc_decision;
SPECC_API int specc_session_trace(
    specc_session *session, int32_t on); /* off at first; between steps; costs nothing when off */
SPECC_API const specc_decision *specc_session_decisions(
    const specc_session *session, int32_t *n); /* [n] of the last round */

/* Logits of ids [n] that stand at places past, past + 1, ... of a text, in one call of `width` rows (one that
 * the engine lists; rows behind n are padding). The places before must hold from earlier calls. logits
 * [n][vocab] f32, NULL to fill the cache only. Ends a generation that is under way; the next one reads these
 * places again. */
SPECC_API int specc_session_rows(
    specc_session *session, const int32_t *ids, int32_t n, int32_t past, int32_t width, float *logits);

/* Runs n_trials single rounds (or `rounds` rounds in a row) of one prompt, trial t with seed request->seed +
 * t, for law tests. out: [n_trials][rounds][2 + 2 * k_max + 1] i32 = proposed, accepted, drafted[k_max],
 * emitted[k_max + 1] (-1 pads, a whole record of -1 stands for a round after the generation's end). */
SPECC_API int specc_trials(specc_session *session, const specc_request *request, const int32_t *ids,
    int32_t n, int32_t rounds, int64_t n_trials, int32_t *out);

/* ------------------------------------------------------------------ pure parts, for tests and for loops of
 * your own */
SPECC_API void specc_philox(
    uint64_t seed, const uint32_t counter[4], uint32_t out[4]); /* Philox4x32-10: Salmon et al. 2011 */
SPECC_API double specc_exp(double x); /* the stated polynomials that every platform shares */
SPECC_API double specc_log(double x);
/* p [n_ids] f64 of one row under the options; history [n_history] ids, the first n_prompt of them the prompt.
 * Temperature 0 gives a one-hot row. SPECC_E_NUMERICS for NaN, +infinity, or a row with nothing left. */
SPECC_API int specc_distribution(const specc_options *options, const float *logits, int32_t n_logits,
    int32_t n_ids, const int32_t *history, int32_t n_history, int32_t n_prompt, double *p);
/* The code of the CUDA kernels, run here by a loop over its threads: logits [rows][n_logits] to p
 * [rows][n_ids], and what stands in each row's slot: stands [rows] 1 for the proposed token, token [rows].
 * Bit for bit what a session decides, row by row. */
SPECC_API int specc_judge_rows(const specc_judging *judging, const float *logits, int32_t n_logits, double *p,
    int32_t *stands, int32_t *token);
/* cffi: end */

#ifdef __cplusplus
}
#endif
#endif
