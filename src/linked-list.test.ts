import fc from 'fast-check'
import { describe, expect, it } from 'vitest'
import { type Linked, LinkedList } from './linked-list.ts'

interface Member extends Linked<Member> {
  readonly name: number
}

const memberOf = (name: number): Member => ({ name, isListed: false, before: undefined, after: undefined })

describe('LinkedList', () => {
  it('has the members and the order of a Set, whatever is added and deleted', () => {
    const step = fc.record({ add: fc.boolean(), which: fc.nat(7) })
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const members = Array.from({ length: 8 }, (_, name) => memberOf(name))
        const list = new LinkedList<Member>()
        const set = new Set<Member>()
        for (const { add, which } of steps) {
          const member = members[which] as Member
          if (add) {
            list.add(member)
            set.add(member)
          } else {
            list.delete(member)
            set.delete(member)
          }
          expect(list.members()).toEqual([...set])
          expect(list.first).toBe([...set][0])
          expect(list.size).toBe(set.size)
        }
        for (const member of members) if (!set.has(member)) expect(member).toEqual(memberOf(member.name))
      }),
    )
  })
})
