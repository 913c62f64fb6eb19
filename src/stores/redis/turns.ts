import { type Alarm, Alarms } from '../../alarms.ts'
import type { Clock } from '../../clock.ts'
import { OncekeyError } from '../../error.ts'
import { UnderWay } from '../../under-way.ts'
import type { Arg } from './clients.ts'
import { faultOf } from './faults.ts'
import { FORMAT, type Script } from './scripts.ts'

/** One verb on one record. */
export type Call = LoneCall | JointCall

/** Of a script that takes one record. */
interface LoneCall {
  readonly script: Script
  readonly key: string
  readonly args: readonly Arg[]
}

/** Of a script that takes many: those that share the script and its first arguments go as one. */
interface JointCall {
  readonly script: Script
  readonly key: string
  readonly shared: Shared
  readonly own: string
  readonly body: Buffer | null
}

/** The first three or four arguments; where there are three, the bodies come fourth. */
type Shared = readonly string[]

/** What matters here of a client. */
export interface ClientTraits {
  readonly isCluster: boolean
  /** Whether it gathers commands, too, and writes them at the end of the turn of the event loop. */
  readonly writesAtTurnEnd: boolean
}

export type Send = (
  script: Script,
  keys: readonly string[],
  args: readonly Arg[],
  signal: AbortSignal,
) => Promise<unknown>

/** Records in one script at most: some tenths of a millisecond, in which the server does nothing else. */
const JOINT_CALLS_MAX = 128
/** How many arguments all records of a script share. */
const SHARED_ARGS = 4
/** A script takes no further body beyond this; a larger one goes in a script of its own. */
const JOINT_BYTES_MAX = 1024 * 1024

/**
 * What is asked in one turn of the event loop goes out together, as few scripts with many records: a command costs its
 * driver, the wire and the server far more than one record more does. A lone call is sent at once.
 *
 * Calls of one key keep their order. Every call ends in time, and with our own error.
 */
export class Turns {
  readonly #send: Send
  readonly #callMsMax: number
  readonly #alarms: Alarms
  readonly #writesAtTurnEnd: boolean
  #isJoining: boolean
  #gathering: Turn | undefined
  readonly #underWay = new UnderWay()

  constructor(send: Send, { isCluster, writesAtTurnEnd }: ClientTraits, clock: Clock, callMsMax: number) {
    this.#send = send
    this.#writesAtTurnEnd = writesAtTurnEnd
    // A cluster takes no script on keys of several servers: every call goes alone.
    this.#isJoining = !isCluster
    this.#alarms = new Alarms(clock, callMsMax)
    this.#callMsMax = callMsMax
  }

  submit(call: Call): Promise<unknown> {
    return new Promise((resolve, reject) => {
      this.#gather({ call, resolve, reject })
    })
  }

  /** Resolves when everything submitted so far has its reply. */
  async idle(): Promise<void> {
    this.#flush()
    await this.#underWay.idle()
  }

  #gather(waiting: Waiting): void {
    if (this.#gathering !== undefined) return void this.#gathering.calls.push(waiting)
    const alarm = this.#alarms.set(() => this.#late(turn))
    const turn: Turn = { calls: [waiting], sent: 0, alarm, aborter: new AbortController(), unanswered: 1 }
    this.#gathering = turn
    // While a reply is awaited nobody is alone: then also those go along whose sockets are read in this same turn.
    const isAlone = this.#underWay.count === 0
    this.#underWay.begin()
    if (isAlone) return queueMicrotask(this.#flush)
    setImmediate(this.#flush)
    // Such a client writes right behind this flush when it has something to write by now, and else a whole turn later.
    if (this.#writesAtTurnEnd) this.#sendCalls(turn)
  }

  readonly #flush = (): void => {
    const turn = this.#gathering
    if (turn === undefined) return
    this.#gathering = undefined
    this.#sendCalls(turn)
    this.#answered(turn)
  }

  /** Those that came since the last time. */
  #sendCalls(turn: Turn): void {
    let joints: Joint[] = []
    const keys = new Set<string>()
    const sendJoints = (): void => {
      for (const joint of joints) this.#sendJoint(turn, joint)
      joints = []
      keys.clear()
    }
    for (; turn.sent < turn.calls.length; turn.sent++) {
      const one = turn.calls[turn.sent] as Waiting
      const { call } = one
      // What stands before it in the same turn about the same key must also reach the server before it.
      if (keys.has(call.key)) sendJoints()
      keys.add(call.key)
      if (!('own' in call)) {
        this.#sendAlone(turn, one, call)
        continue
      }
      const bytes = call.body?.length ?? 0
      let joint = joints.findLast((open) => open.takes(call, bytes))
      if (joint === undefined) {
        joint = new Joint(call)
        joints.push(joint)
      }
      joint.add(one, call, bytes)
      if (!this.#isJoining) sendJoints()
    }
    sendJoints()
  }

  #sendAlone(turn: Turn, { resolve, reject }: Waiting, { script, key, args }: LoneCall): void {
    turn.unanswered++
    this.#send(script, [key], args, turn.aborter.signal).then(
      (reply) => {
        resolve(reply)
        this.#answered(turn)
      },
      (error: unknown) => {
        reject(faultOf(error))
        this.#answered(turn)
      },
    )
  }

  #sendJoint(turn: Turn, joint: Joint): void {
    turn.unanswered++
    this.#send(joint.script, joint.keys, joint.args(), turn.aborter.signal).then(
      (replies) => {
        joint.answer(replies)
        this.#answered(turn)
      },
      (error: unknown) => {
        const { members } = joint
        if (members.length > 1 && isCrossSlot(error)) {
          // A proxy before several servers: it has refused to begin, so nothing was done.
          this.#isJoining = false
          for (const member of members) this.#gather(member)
        } else joint.reject(faultOf(error))
        this.#answered(turn)
      },
    )
  }

  #answered(turn: Turn): void {
    if (--turn.unanswered === 0) this.#end(turn)
  }

  /** Replies that come after this find their promises rejected; what was not sent yet is not to be sent any more. */
  #late(turn: Turn): void {
    const fault = faultOf(new Error(`no reply within ${this.#callMsMax} ms`))
    for (const { reject } of turn.calls) reject(fault)
    turn.aborter.abort()
    this.#end(turn)
  }

  #end(turn: Turn): void {
    if (turn.isOver) return
    turn.isOver = true
    this.#alarms.cancel(turn.alarm)
    this.#underWay.end()
  }
}

interface Turn {
  readonly calls: Waiting[]
  readonly alarm: Alarm
  readonly aborter: AbortController
  /** How many of its calls were sent. */
  sent: number
  /** Scripts that are under way, and one more until all calls were sent. */
  unanswered: number
  isOver?: true
}

interface Waiting {
  readonly call: Call
  readonly resolve: (reply: unknown) => void
  readonly reject: (error: unknown) => void
}

class Joint {
  readonly script: Script
  readonly keys: string[] = []
  readonly members: Waiting[] = []
  readonly #shared: Shared
  readonly #owns: string[] = []
  readonly #bodies: Buffer[] = []
  #bytes = 0

  constructor({ script, shared }: JointCall) {
    this.script = script
    this.#shared = shared
  }

  takes({ script, shared }: JointCall, bytes: number): boolean {
    if (script !== this.script || this.members.length >= JOINT_CALLS_MAX) return false
    if (this.#bytes + bytes > JOINT_BYTES_MAX) return false
    return shared.length === this.#shared.length && shared.every((value, index) => value === this.#shared[index])
  }

  add(member: Waiting, { key, own, body }: JointCall, bytes: number): void {
    this.members.push(member)
    this.keys.push(key)
    this.#owns.push(own)
    if (body !== null && bytes > 0) this.#bodies.push(body)
    this.#bytes += bytes
  }

  args(): Arg[] {
    if (this.#shared.length === SHARED_ARGS) return [...this.#shared, ...this.#owns]
    const [first] = this.#bodies
    const bodies = this.#bodies.length > 1 ? Buffer.concat(this.#bodies, this.#bytes) : (first ?? '')
    return [...this.#shared, bodies, ...this.#owns]
  }

  answer(replies: unknown): void {
    if (!Array.isArray(replies) || replies.length !== this.members.length + 1) {
      return this.reject(
        new OncekeyError(
          'store-incompatible',
          'Redis answered a script with something that the script does not say. A proxy or a changed script is in the way.',
        ),
      )
    }
    const now: unknown = replies[this.members.length]
    for (const [index, { resolve, reject }] of this.members.entries()) {
      const reply: unknown = replies[index]
      if (!Buffer.isBuffer(reply)) resolve(reply)
      else if (reply.toString('latin1', 0, FORMAT.length) === FORMAT) resolve([now, reply])
      // An error's text: this record could not be used, and the others could.
      else reject(faultOf(new Error(reply.toString())))
    }
  }

  reject(error: unknown): void {
    for (const { reject } of this.members) reject(error)
  }
}

function isCrossSlot(error: unknown): boolean {
  return error instanceof Error && /\bCROSSSLOT\b/.test(error.message)
}
