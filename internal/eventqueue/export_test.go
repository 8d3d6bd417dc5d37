package eventqueue

// Room returns for how many items the queue has room in memory.
func (q *Queue[T]) Room() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return cap(q.items)
}
