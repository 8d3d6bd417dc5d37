package turns

// InUse returns how many keys the queue knows.
func (q *Queue) InUse() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.keys)
}
