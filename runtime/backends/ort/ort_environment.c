/* ort_environment.c - ONNX Runtime's environment, made so that it neither speaks nor reports.
 *
 * Its first maker decides what a process-wide environment logs to. We give no callback, so that none of ours
 * stays in it; what it would print is held back by the severity, here and in every session.
 *
 * Telemetry: builds with it (the Linux packages from 1.32 on) write a device id below ~/.cache/Microsoft and
 * ask for a Microsoft host as soon as the environment is made; DisableTelemetryEvents comes after that. The
 * builds read a variable of the process's environment first, so it is there during the call, for threads that
 * look it up in that moment too, and gone afterwards. */
#include "backends/ort/ort.h"
#include <stdlib.h>
#include <unistd.h>

static char *const opt_outs[] = {"ORT_DISABLE_TELEMETRY=1", "ORT_TELEMETRY_DISABLED=1"};
enum { OPT_OUTS = sizeof opt_outs / sizeof *opt_outs };

/* environ with the opt-outs behind it. A variable that is set already comes first, so it counts. It is never
 * freed: a thread may be reading it. NULL: no memory. */
static char **extend_environ(void) {
  size_t n = 0;
  while (environ && environ[n]) n++;
  char **extended = malloc((n + OPT_OUTS + 1) * sizeof *extended);
  if (!extended) return NULL;
  if (n) memcpy(extended, environ, n * sizeof *extended);
  memcpy(extended + n, opt_outs, sizeof opt_outs);
  extended[n + OPT_OUTS] = NULL;
  return extended;
}

static bool is_opt_out(const char *entry) {
  for (int i = 0; i < OPT_OUTS; i++)
    if (entry == opt_outs[i]) return true;
  return false;
}

/* Another thread may have called setenv() meanwhile: then environ is its copy, and ours go out of that. */
static void restore_environ(char **before, char **extended) {
  if (environ == extended) {
    environ = before;
    return;
  }
  char **to = environ;
  for (char **from = environ; from && *from; from++)
    if (!is_opt_out(*from)) *to++ = *from;
  if (to) *to = NULL;
}

/* A library decides about telemetry once, with its first environment. */
static bool has_decided(const ort_api *api) {
  enum { LIBRARIES = 8 };
  static OrtStatus *(*seen[LIBRARIES])(ort_enum, const char *, OrtEnv **); /* guarded by ort_acquire's lock */
  static int n;
  for (int i = 0; i < n; i++)
    if (seen[i] == api->CreateEnv) return true;
  if (n < LIBRARIES) seen[n++] = api->CreateEnv;
  return false;
}

OrtStatus *ort_create_environment(const ort_api *api, OrtEnv **env) {
  static char **kept; /* reachable, as a thread may still be reading it */
  char **before = environ, **extended = has_decided(api) ? NULL : extend_environ();
  if (extended) kept = environ = extended;
  OrtStatus *status = api->CreateEnv(ORT_SEVERITY_FATAL, "specc", env);
  if (extended) restore_environ(before, kept);
  return status ? status : api->DisableTelemetryEvents(*env);
}
