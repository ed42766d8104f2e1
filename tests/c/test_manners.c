/* test_manners.c - libspecc as a guest: loaded at run time, next to a host's own ONNX Runtime, in a thread
 * that ends after the unloading, and before a fork. SPECC_GUEST names the library, SPECC_ENGINE_LIBRARY
 * libonnxruntime. */
#include "abi/ort_abi.h"
#include "expect.h"
#include "tiny_bundle.h"
#include <dlfcn.h>
#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#define CALL(name) ((__typeof__(&(name)))(uintptr_t)dlsym(guest, #name))

static const char *engine;
static void *guest;

static int open_guest(void) {
  guest = dlopen(getenv("SPECC_GUEST"), RTLD_NOW | RTLD_LOCAL);
  return EXPECT(guest != NULL);
}

static int try_open(int threads, specc_model **model) {
  specc_open_options o = {.folder = folder, .engine_library = engine, .threads = threads};
  int code = CALL(specc_model_open)(&o, model);
  if (code) fprintf(stderr, "open: %s\n", CALL(specc_last_error)());
  return code;
}

static int generate(specc_session *session) {
  specc_request r;
  CALL(specc_request_default)(&r);
  r.options.temperature = 0, r.max_new_tokens = 8;
  const int32_t ids[] = {1, 4, 9};
  int code = CALL(specc_session_start)(session, &r, ids, 3);
  return code ? code : CALL(specc_session_run)(session, NULL, NULL);
}

static int use_model(int threads) {
  specc_model *model = NULL;
  specc_session *session = NULL;
  int code = try_open(threads, &model);
  if (!code) code = CALL(specc_session_create)(model, &session);
  if (!code) code = generate(session);
  CALL(specc_session_free)(session);
  CALL(specc_model_free)(model);
  return code;
}

/* ------------------------------------------------------------------ a host with a logger of its own */
static int heard;
static ort_api api;
static OrtEnv *host;

static void hear(void *user, ort_enum severity, const char *category, const char *id, const char *place,
    const char *message) {
  (void)user, (void)severity, (void)category, (void)id, (void)place, (void)message;
  heard++;
}

static void load_host(void) {
  void *library = dlopen(engine, RTLD_NOW | RTLD_LOCAL);
  const ort_base *(*get)(void) = (const ort_base *(*)(void))(uintptr_t)dlsym(library, "OrtGetApiBase");
  ort_api_read(&api, get()->GetApi(ORT_OLDEST), ORT_OLDEST);
}

static void start_host(void) {
  EXPECT(!api.CreateEnvWithCustomLogger(hear, NULL, 0, "host", &host));
}

static int count_messages(void) {
  OrtSessionOptions *options;
  OrtSession *session = NULL;
  heard = 0;
  EXPECT(!api.CreateSessionOptions(&options) && !api.SetIntraOpNumThreads(options, 1) &&
         !api.SetSessionLogSeverityLevel(options, 0));
  EXPECT(!api.CreateSession(host, at("target.onnx"), options, &session));
  if (session) api.ReleaseSession(session);
  api.ReleaseSessionOptions(options);
  return heard;
}

enum order { HOST_FIRST, HOST_LOADED, HOST_AFTER };

/* The host's logger hears its own session while a model is open, and after it, and after the unloading; and
 * it hears nothing of ours. */
static void keep_logger(enum order order, int unload) {
  specc_model *model = NULL;
  if (order != HOST_AFTER) load_host();
  if (order == HOST_FIRST) start_host();
  if (!open_guest() || !EXPECT(!try_open(1, &model))) return;
  if (order == HOST_AFTER) load_host();
  if (order != HOST_FIRST) start_host();
  EXPECT(count_messages() > 0);
  heard = 0;
  CALL(specc_model_free)(model);
  EXPECT(!use_model(2) && heard == 0);
  if (unload) EXPECT(!dlclose(guest));
  EXPECT(count_messages() > 0);
  api.ReleaseEnv(host);
}

static void test_loggers(void *unused) {
  (void)unused;
  for (int order = HOST_FIRST; order <= HOST_AFTER; order++)
    for (int unload = 0; unload < 2; unload++) {
      pid_t child = fork();
      if (!child) keep_logger((enum order)order, unload), fflush(stdout), _exit(failures != 0);
      int status = 0;
      waitpid(child, &status, 0);
      if (!EXPECT(!status)) fprintf(stderr, "order %d, unload %d: status %d\n", order, unload, status);
    }
}

/* ------------------------------------------------------------------ threads that outlive the unloading */
static void *work(void *unused) {
  (void)unused;
  for (int i = 0; i < 2; i++)
    if (open_guest()) EXPECT(!use_model(2)), EXPECT(!dlclose(guest));
  return NULL;
}

static void test_unloading(void *unused) {
  pthread_t thread;
  EXPECT(!pthread_create(&thread, NULL, work, unused) && !pthread_join(thread, NULL));
  void *still = dlopen(getenv("SPECC_GUEST"), RTLD_NOW | RTLD_NOLOAD);
  EXPECT(still != NULL); /* never unmapped: threads and the engine may hold addresses in it */
  work(unused);
}

/* ------------------------------------------------------------------ forks */
static void expect_refused(int code) {
  const char *said = CALL(specc_last_error)();
  if (!EXPECT(code == SPECC_E_UNSUPPORTED && strstr(said, "forked child")))
    fprintf(stderr, "%d: %s\n", code, said);
}

static void use_in_child(specc_model *model, specc_session *session) {
  specc_session *another = NULL;
  specc_event event;
  specc_stats stats;
  specc_certificate certificate;
  specc_model_info info;
  int32_t records[64];
  const int32_t ids[] = {1, 4, 9};
  const specc_certify_options certify = {.tokens = ids, .n_tokens = 3};
  specc_request r;
  CALL(specc_request_default)(&r);
  expect_refused(generate(session));
  expect_refused(CALL(specc_session_step)(session, &event));
  expect_refused(CALL(specc_session_stats)(session, &stats));
  expect_refused(CALL(specc_session_score)(session, ids, 1, 0, 1, NULL));
  expect_refused(CALL(specc_trials)(session, &r, ids, 3, 1, 1, records));
  expect_refused(CALL(specc_session_create)(model, &another));
  expect_refused(CALL(specc_certify)(model, &certify, &certificate));
  EXPECT(!another && !CALL(specc_model_info_get)(model, &info) && info.vocab == VOCAB);
  CALL(specc_session_free)(session);
  CALL(specc_model_free)(model);
  EXPECT(!use_model(2)); /* one of its own */
}

static void test_forks(void *unused) {
  (void)unused;
  specc_model *model = NULL;
  specc_session *session = NULL;
  if (!open_guest() || !EXPECT(!try_open(2, &model))) return;
  EXPECT(!CALL(specc_session_create)(model, &session) && !generate(session));
  pid_t child = fork();
  if (!child) alarm(60), use_in_child(model, session), fflush(stdout), _exit(failures != 0);
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT(!status);
  EXPECT(!generate(session)); /* the parent's is unharmed */
  CALL(specc_session_free)(session);
  CALL(specc_model_free)(model);
}

/* Each test in a process that has loaded nothing yet. */
static void run_alone(const char *name, void (*test)(void *)) {
  pid_t child = fork();
  if (!child) test(NULL), fflush(stdout), _exit(failures != 0);
  int status = 0;
  waitpid(child, &status, 0);
  if (!EXPECT(!status)) fprintf(stderr, "%s: status %d\n", name, status);
}

int main(void) {
  char clean[80];
  engine = getenv("SPECC_ENGINE_LIBRARY");
  if (!engine) return printf("test_manners: skipped, SPECC_ENGINE_LIBRARY is not set\n"), SKIP;
  if (!mkdtemp(folder)) return 1;
  weights *w = make_weights();
  write_graph(at("target.onnx"), w, (variant){0});
  free(w);
  write_table(48);
  write_manifest(NULL, NULL);
  run_alone("loggers", test_loggers);
  run_alone("unloading", test_unloading);
  run_alone("forks", test_forks);
  snprintf(clean, sizeof clean, "rm -r %s", folder);
  EXPECT(system(clean) == 0);
  return finish("test_manners");
}
