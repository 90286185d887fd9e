/* Counts what a process calls of CUDA, by name: a callback of CUPTI, loaded by CUDA's driver when it is initialised
   (CUDA_INJECTION64_PATH). Python loads the same file, which the system does not load twice, to clear and to write the
   counts (lib/timing/profiling/run.py).
   CUPTI: https://docs.nvidia.com/cupti/main/main.html, "CUPTI Callback API". */

#include <cupti.h>
#include <stdio.h>
#include <string.h>

enum { DOMAINS = 2, MOST = 2048 }; /* calls of an interface, by number: less than a thousand in CUDA 13 */

static const char *const interfaces[DOMAINS] = {"runtime", "driver"};
static unsigned long counts[DOMAINS][MOST];
static const char *names[DOMAINS][MOST]; /* they live as long as CUPTI */
static CUpti_SubscriberHandle subscriber;
static int subscribed;

static void CUPTIAPI count(void *unused, CUpti_CallbackDomain domain, CUpti_CallbackId id, const void *data) {
  const CUpti_CallbackData *call = (const CUpti_CallbackData *)data;
  const int interface = domain == CUPTI_CB_DOMAIN_DRIVER_API;
  (void)unused;
  if (call->callbackSite != CUPTI_API_ENTER || id >= MOST) return;
  names[interface][id] = call->functionName;
  __atomic_fetch_add(&counts[interface][id], 1ul, __ATOMIC_RELAXED); /* PyTorch calls from several threads */
}

/* The driver calls this once. 1: it is counted; else CUDA runs as it would without this library. */
int InitializeInjection(void) {
  if (subscribed) return 1;
  subscribed = cuptiSubscribe(&subscriber, (CUpti_CallbackFunc)count, NULL) == CUPTI_SUCCESS &&
               cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_RUNTIME_API) == CUPTI_SUCCESS &&
               cuptiEnableDomain(1, subscriber, CUPTI_CB_DOMAIN_DRIVER_API) == CUPTI_SUCCESS;
  return subscribed;
}

void clear_counts(void) { memset(counts, 0, sizeof counts); }

/* A line for each function that was called: interface, name, how often. 0: it is written. */
int write_counts(const char *path) {
  FILE *file = fopen(path, "w");
  if (file == NULL) return 1;
  for (int interface = 0; interface < DOMAINS; interface++)
    for (int id = 0; id < MOST; id++)
      if (counts[interface][id] != 0)
        fprintf(file, "%s %s %lu\n", interfaces[interface], names[interface][id], counts[interface][id]);
  return fclose(file) != 0;
}
