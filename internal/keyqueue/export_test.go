package keyqueue

// Sites returns how many keys the queue remembers.
func (q *Queue) Sites() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.sites)
}
