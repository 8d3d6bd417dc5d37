package keyqueue

// Sites returns how many keys the queue remembers.
func (q *Queue) Sites() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.sites)
}

// Listed returns how many entries the list of a class has, old ones among them.
func (q *Queue) Listed(class int) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.ready[class])
}
