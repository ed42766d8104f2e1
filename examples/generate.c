/* generate.c - opens a bundle, generates from token ids, prints the text and what speculative decoding
 * brought.
 *
 *     cc generate.c $(pkg-config --cflags --libs specc) -o generate
 *     ./generate BUNDLE libonnxruntime.so.1 ID [ID ...]
 *
 * The ids of a prompt come from the tokenizer.json in the bundle; a prompt usually begins with the begin
 * token. */
#include <specc.h>
#include <stdio.h>
#include <stdlib.h>

static void check(int code) {
  if (!code) return;
  fprintf(stderr, "generate: %s\n", specc_last_error());
  exit(1);
}

static int print_text(void *user, const specc_event *event) {
  fwrite(event->text, 1, (size_t)event->n_text, user);
  return fflush(user) != 0; /* non-zero ends the generation */
}

static void print_reasons(uint32_t reasons) {
  printf("speculation is %s", reasons ? "off:" : "on");
  for (uint32_t bit = 1; bit && bit <= reasons; bit <<= 1)
    if (reasons & bit) printf(" %s", specc_reason_name(bit));
  printf("\n");
}

static void print_statistics(const specc_stats *stats) {
  printf("%lld tokens from %lld target calls in %.3f s; %lld of %lld proposed tokens accepted\n",
      (long long)stats->emitted, (long long)stats->target_calls, stats->seconds, (long long)stats->accepted,
      (long long)stats->proposed);
}

int main(int argc, char **argv) {
  if (argc < 4) {
    fprintf(stderr, "usage: %s BUNDLE ENGINE_LIBRARY ID [ID ...]\n", argv[0]);
    return 2;
  }
  int32_t n_prompt = argc - 3, *prompt = malloc((size_t)n_prompt * sizeof *prompt);
  if (!prompt) return 1;
  for (int32_t i = 0; i < n_prompt; i++) prompt[i] = (int32_t)strtol(argv[3 + i], NULL, 10);

  specc_model *model;
  specc_session *session;
  specc_request request;
  specc_stats stats;
  check(specc_model_open(&(specc_open_options){.folder = argv[1], .engine_library = argv[2]}, &model));
  check(specc_session_create(model, &session));

  specc_request_default(&request);
  request.options.temperature = 0.8;
  request.max_new_tokens = 64;
  check(specc_session_start(session, &request, prompt, n_prompt));
  check(specc_session_run(session, print_text, stdout));
  printf("\n");

  check(specc_session_stats(session, &stats));
  print_statistics(&stats);
  print_reasons(stats.reasons);
  specc_session_free(session);
  specc_model_free(model);
  free(prompt);
  return 0;
}
