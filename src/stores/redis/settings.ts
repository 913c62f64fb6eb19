import { OncekeyError } from '../../error.ts'
import type { Strictness } from '../../store-checks.ts'
import type { Ask } from './drivers.ts'

/** What a server says of itself; `undefined` where it will not say, as many managed ones do. */
export interface ServerSettings {
  readonly evictionPolicy: string | undefined
  readonly appendOnly: boolean | undefined
}

/** INFO first: managed servers that forbid CONFIG mostly allow it. */
export async function settingsOf(ask: Ask): Promise<ServerSettings> {
  const [memory, persistence] = await Promise.all([told(ask, 'memory'), told(ask, 'persistence')])
  const policy = /^maxmemory_policy:(\S+)/m.exec(memory)?.[1] ?? (await configured(ask, 'maxmemory-policy'))
  const aof = /^aof_enabled:([01])/m.exec(persistence)?.[1]
  if (aof !== undefined) return { evictionPolicy: policy, appendOnly: aof === '1' }
  const appendOnly = await configured(ask, 'appendonly')
  return { evictionPolicy: policy, appendOnly: appendOnly === undefined ? undefined : appendOnly === 'yes' }
}

/** Throws `config-invalid` for what is refused; returns what there is to warn of. */
export function judge(
  settings: readonly ServerSettings[],
  whenEvicting: Strictness,
  whenVolatile: Strictness,
): readonly string[] {
  const policies = new Set(settings.map(({ evictionPolicy }) => evictionPolicy))
  policies.delete('noeviction')
  const warnings: string[] = []
  const evicting = [...policies].find((policy) => policy !== undefined)
  if (evicting !== undefined) {
    object(
      whenEvicting,
      `This Redis may evict live claims: its maxmemory-policy is ${evicting}. When memory is short it would forget ` +
        'operations that are still running, and they would run twice. Set maxmemory-policy to noeviction, or use a ' +
        'Redis of its own for the records.',
      'whenEvicting',
      warnings,
    )
  } else if (policies.size > 0 && whenEvicting !== 'ignore') {
    warnings.push(
      'This Redis does not tell its maxmemory-policy (INFO and CONFIG are forbidden). Make sure that it is noeviction: ' +
        'under any other policy live claims vanish when memory is short, and operations run twice.',
    )
  }
  if (settings.some(({ appendOnly }) => appendOnly === false)) {
    object(
      whenVolatile,
      'This Redis keeps no append-only file: a crash or a restart takes the records since its last snapshot, or all of ' +
        'them, and those operations can run again. Set appendonly to yes.',
      'whenVolatile',
      warnings,
    )
  }
  return warnings
}

function object(strictness: Strictness, text: string, option: string, warnings: string[]): void {
  if (strictness === 'refuse') {
    throw new OncekeyError(
      'config-invalid',
      `${text} To use it as it is, knowing that, give redisStore the option ${option}: 'warn' or 'ignore'.`,
    )
  }
  if (strictness === 'warn') warnings.push(text)
}

async function told(ask: Ask, section: string): Promise<string> {
  return String((await unlessForbidden(ask('INFO', section))) ?? '')
}

async function configured(ask: Ask, name: string): Promise<string | undefined> {
  const reply = await unlessForbidden(ask('CONFIG', 'GET', name))
  // A list of name and value, or a map under RESP3.
  const values = Array.isArray(reply) ? reply : Object.values(Object(reply))
  return values.length === 0 ? undefined : String(values.at(-1))
}

/** An answer of the server that says no, as against no answer. */
async function unlessForbidden(reply: Promise<unknown>): Promise<unknown> {
  try {
    return await reply
  } catch (error) {
    if (error instanceof Error && /^(?:NOPERM|ERR unknown command|ERR unknown subcommand)/i.test(error.message)) {
      return undefined
    }
    throw error
  }
}
