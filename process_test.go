package loki_test

const workerVar = "LOKI_TEST_WORKER"

func runWorker(string) int { return 0 }
