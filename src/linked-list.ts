/** What a member carries for the list that it is in. It can be in one at a time. */
export interface Linked<T> {
  isListed: boolean
  before: T | undefined
  after: T | undefined
}

/**
 * Things that come and go with every request, in the order in which they came.
 *
 * Not a `Set`: V8 gives a `Set` that is added to and deleted from a new table every so often, and the table before it
 * keeps a pointer to the next one. Once the collector has taken one of these for old, everything that hangs on the chain
 * counts as alive until the next full collection: thousands of answered requests, copied again and again. Here the links
 * are cut when a member leaves.
 */
export class LinkedList<T extends Linked<T>> {
  first: T | undefined
  #last: T | undefined
  size = 0

  add(member: T): void {
    if (member.isListed) return
    member.isListed = true
    member.before = this.#last
    if (this.#last === undefined) this.first = member
    else this.#last.after = member
    this.#last = member
    this.size++
  }

  delete(member: T): void {
    if (!member.isListed) return
    const { before, after } = member
    if (before === undefined) this.first = after
    else before.after = after
    if (after === undefined) this.#last = before
    else after.before = before
    member.isListed = false
    member.before = undefined
    member.after = undefined
    this.size--
  }

  /** Those of this moment: whoever walks along may add and delete. */
  members(): T[] {
    const members: T[] = []
    for (let member = this.first; member !== undefined; member = member.after) members.push(member)
    return members
  }
}
